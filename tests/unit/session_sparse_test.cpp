// TopK in a Session: results are those of the definition, the same on all ranks, and nothing is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/one_parameter.hpp"
#include "support/ranks.hpp"
#include "support/reference_sparse.hpp"
#include "support/residuals.hpp"
#include "support/sparse_course.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_sparse {
namespace {

using namespace sparse_course;

TEST(SessionSparse, IsAsDefinedOnAnyNumberOfRanks) {
  for (const Algorithm algorithm : kAlgorithms)
    for (int ranks = 1; ranks <= 7; ++ranks)
      for (const std::size_t count : {1ul, 400ul, 4001ul})
        for (const double ratio : {0.01, 0.1, 0.6})
          for (const bool bf16 : {false, true})
            for (const bool reselect : {false, true}) {
              if (count == 400 && ratio > 0.5) continue;  // so few that it is cheaper to send all
              SCOPED_TRACE(std::string(to_string(algorithm)) + " of " + std::to_string(count) + " on " +
                           std::to_string(ranks) + ", ratio " + std::to_string(ratio) + (bf16 ? ", bf16" : "") +
                           (reselect ? "" : ", union"));
              TopK top_k{.ratio = ratio, .reselect = reselect};
              if (bf16) top_k.values = Bf16{};
              const auto gradients = [&](int step) {
                return gradients_of(static_cast<std::size_t>(ranks), count, step);
              };
              const Course got =
                  run(one_parameter({static_cast<std::int64_t>(count)}, top_k), with(algorithm), ranks, 4, gradients);
              ReferenceTopK reference(count, static_cast<std::size_t>(ranks),
                                      {ratio, bf16, algorithm == Algorithm::two_shot, reselect});
              for (int step = 0; step < 4; ++step) {
                const std::vector<float> expected = reference.step(gradients(step));
                for (const Rows& results : got.results)
                  ASSERT_EQ(results[static_cast<std::size_t>(step)], expected) << "step " << step;
              }
              for (std::size_t r = 0; r < got.residuals.size(); ++r)
                ASSERT_EQ(got.residuals[r], reference.residuals[r]) << "residual of rank " << r;
              if (HasFatalFailure()) return;
            }
}

TEST(SessionSparse, RatioOneIsTheExactSum) {
  for (const Algorithm algorithm : kAlgorithms)
    for (int ranks = 2; ranks <= 7; ++ranks) {
      Steps exact{.model = one_parameter({5003}, Codec{}), .options = with(algorithm)};
      Steps sparse{.model = one_parameter({5003}, TopK{.ratio = 1}), .options = with(algorithm)};
      const auto expected = exact.run(ranks);
      EXPECT_TRUE(sparse.run(ranks) == expected) << to_string(algorithm) << " on " << ranks;
      sparse.model = one_parameter({5003}, TopK{.ratio = 1, .sampled = true});
      EXPECT_TRUE(sparse.run(ranks) == expected);
    }
}

/// Several kinds of parameters beside each other.
Model sparse_model() {
  return {{"int8", {37, 61}, ElementType::f32, Int8{}},
          {"1 %", {5000}, ElementType::f32, TopK{.ratio = 0.01}},
          {"bf16 buffer", {3000}, ElementType::bf16, TopK{.ratio = 0.05, .values = Int8{}}},
          {"empty", {0}, ElementType::f32, TopK{}},
          {"one", {1}, ElementType::f32, TopK{}},
          {"sampled", {9000}, ElementType::f32, TopK{.ratio = 0.1, .values = Bf16{}, .sampled = true}},
          {"exact", {70}, ElementType::f32, Codec{}},
          {"together a", {800}, ElementType::f32, TopK{.ratio = 0.02, .per_bucket = true}},
          {"together b", {2000}, ElementType::f16, TopK{.ratio = 0.02, .per_bucket = true}},
          {"dense", {333}, ElementType::f32, TopK{.ratio = 0.97}}};
}

TEST(SessionSparse, SameBitsOnAllRanksInAnyOrder) {
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(std::string(to_string(algorithm)) + " on " + std::to_string(ranks));
      SessionOptions options = with(algorithm);
      options.bucket_bytes = 20'000;
      Steps steps{.model = sparse_model(), .options = options, .steps = 6};
      const auto base = steps.run(ranks);
      EXPECT_TRUE(all_equal(base));
      steps.reduce = in_random_order(5);
      EXPECT_TRUE(steps.run(ranks) == base);
      const auto late = [&](int rank) -> FaultyTransport::Script {
        auto random = std::make_shared<FastRandom>(static_cast<std::uint64_t>(rank));
        return [random](const Message&) { return Fault{.delay = std::chrono::microseconds(random->below(300))}; };
      };
      EXPECT_TRUE(steps.run(faulty(ranks, late)) == base);
    }
}

/// Sums over all steps and ranks: what went in, and what came out or is still kept.
void expect_conserved(const Course& run, int ranks, const Rows& inputs, double tolerance) {
  for (std::size_t i = 0; i < inputs[0].size(); ++i) {
    double in = 0, out = 0, size = 0;
    for (const auto& row : inputs) in += static_cast<double>(row[i]), size += std::abs(static_cast<double>(row[i]));
    for (const auto& result : run.results[0]) out += ranks * static_cast<double>(result[i]);
    for (const auto& residual : run.residuals) out += static_cast<double>(residual[i]);
    ASSERT_NEAR(in, out, tolerance * size) << "element " << i;
  }
}

TEST(SessionSparse, NothingIsLostInAHundredSteps) {
  const std::vector<TopK> kinds = {{.ratio = 0.01},
                                   {.ratio = 0.3},
                                   {.ratio = 0.4, .reselect = false},  // sums fill in: bitmaps, and sections sent whole
                                   {.ratio = 0.05, .values = Int8{}},
                                   {.ratio = 0.05, .values = Int4{}, .sampled = true},
                                   {.ratio = 0.95, .values = Bf16{}},
                                   {.ratio = 0.01, .warm_up_steps = 40}};
  for (const Algorithm algorithm : kAlgorithms)
    for (const TopK& top_k : kinds) {
      constexpr int kRanks = 4, kSteps = 100;
      Rows inputs;
      const auto gradients = [&](int step) {
        Rows rows = gradients_of(kRanks, 1500, step);
        for (std::size_t r = 0; r < kRanks; ++r)
          if ((step + static_cast<int>(r)) % 5 == 0) std::fill(rows[r].begin(), rows[r].end(), 0.0f);
        return rows;
      };
      for (int step = 0; step < kSteps; ++step)
        for (auto& row : gradients(step)) inputs.push_back(std::move(row));
      const Model model = one_parameter({1500}, top_k);
      SCOPED_TRACE(std::string(to_string(algorithm)) + ", " + model[0].codec.spec());
      // One-shot sums of one_shot and means are rounded once per step.
      expect_conserved(run(model, with(algorithm), kRanks, kSteps, gradients), kRanks, inputs, 1e-5);
    }
}

TEST(SessionSparse, NothingIsLostBehindAParameterWithoutElements) {
  constexpr int kRanks = 3, kSteps = 4;
  constexpr std::size_t kCount = 3000;
  for (const Codec& codec :
       {Codec{TopK{.ratio = 1, .values = Int8{}, .per_bucket = true}}, Codec{TopK{.ratio = 0.1, .per_bucket = true}},
        Codec{RandomK{.ratio = 0.2, .values = Int8{}}}}) {
    SCOPED_TRACE(codec.spec());
    const Model model = {{"empty", {0}, ElementType::f32, codec}, {"w", {kCount}, ElementType::f32, codec}};
    Course course{std::vector<Rows>(kRanks), Rows(kRanks), {}};
    Rows inputs;
    for (int step = 0; step < kSteps; ++step)
      for (auto& row : gradients_of(kRanks, kCount, step)) inputs.push_back(std::move(row));
    run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
      const auto me = static_cast<std::size_t>(transport->rank());
      const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
      Gradients buffer(model);
      for (int step = 0; step < kSteps; ++step) {
        const Rows all = gradients_of(kRanks, kCount, step);
        buffer.fill([&](std::size_t, std::size_t i) { return all[me][i]; });
        session->all_reduce(buffer.pointers());
        session->commit();
        course.results[me].push_back(buffer.values(1));
      }
      const auto residual = session->sender_residual(1);
      course.residuals[me].assign(residual.begin(), residual.end());
    });
    expect_conserved(course, kRanks, inputs, 1e-5);
  }
}

TEST(SessionSparse, RangesFollowEntriesThatGather) {
  // All that is large lies in the last tenth: its owner would have to do it all.
  constexpr int kRanks = 4, kSteps = 20;
  constexpr std::size_t kCount = 40'000;
  Rows inputs;
  const auto gradients = [&](int step) {
    Rows rows = gradients_of(kRanks, kCount, step);
    for (auto& row : rows)
      for (std::size_t i = 0; i < kCount * 9 / 10; ++i) row[i] *= 1e-6f;
    return rows;
  };
  for (int step = 0; step < kSteps; ++step)
    for (auto& row : gradients(step)) inputs.push_back(std::move(row));
  const Course got =
      run(one_parameter({kCount}, TopK{.ratio = 0.01}), with(Algorithm::two_shot), kRanks, kSteps, gradients);
  for (const Rows& results : got.results) EXPECT_EQ(results, got.results[0]);
  expect_conserved(got, kRanks, inputs, 1e-5);
  std::uint64_t most = 0, all = 0;
  for (const Statistics& total : got.totals) {
    most = std::max(most, total.sent_bytes);
    all += total.sent_bytes;
  }
  // The busiest rank sends not much more than the others, first step aside.
  EXPECT_LT(static_cast<double>(most), 1.35 * static_cast<double>(all) / kRanks);
}

TEST(SessionSparse, ARolledBackStepHasNotHappened) {
  // Residuals, momentum, ranges and warm-up: afterwards everything goes on as without it.
  for (const Algorithm algorithm : kAlgorithms) {
    const auto run_with = [&](bool disturbed) {
      SessionOptions options = with(algorithm);
      options.momentum = {.factor = 0.9f, .optimizer_momentum = 0.0};
      std::vector<std::vector<float>> kept(3);
      std::vector<std::vector<std::byte>> bytes(3);
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        const Model model = {{"w", {20'000}, ElementType::f32, TopK{.ratio = 0.01, .warm_up_steps = 6}},
                             {"8", {3000}, ElementType::f32, Int8{}},
                             {"exact", {300}, ElementType::bf16, Codec{}}};
        const auto session = sealed_session(transport, model, options);
        Gradients gradients(model);
        const auto me = static_cast<std::size_t>(transport->rank());
        for (std::uint64_t step = 0; step < 8; ++step) {
          if (disturbed && step % 3 == 1) {
            // Entries gather at the end, so that ranges are cut anew.
            FastRandom random(step);
            gradients.fill([&](std::size_t, std::size_t i) { return i > 18'000 ? 1000.0f * random.bell() : 0.0f; });
            session->all_reduce(gradients.pointers());
            session->all_reduce(gradients.pointers());
            session->rollback();
          }
          reduce(*session, gradients, step + 1);
          session->commit();
        }
        kept[me] = residuals(*session);
        bytes[me] = gradients.bytes();
      });
      EXPECT_TRUE(all_equal(bytes));
      return std::pair{kept, bytes};
    };
    EXPECT_TRUE(run_with(true) == run_with(false)) << to_string(algorithm);
  }
}

TEST(SessionSparse, EmptyContributionsAndTies) {
  constexpr std::size_t kCount = 3000;
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {2, 4}) {
      // One rank has nothing; all have nothing; all have the same everywhere.
      const auto gradients = [&](int step) {
        Rows rows = gradients_of(static_cast<std::size_t>(ranks), kCount, step);
        if (step == 0) std::fill(rows[1].begin(), rows[1].end(), 0.0f);
        for (auto& row : rows) {
          if (step == 1 || step == 2) std::fill(row.begin(), row.end(), -0.0f);
          if (step == 3) std::fill(row.begin(), row.end(), 0.5f);
        }
        return rows;
      };
      const Course got = run(one_parameter({kCount}, TopK{.ratio = 0.1}), with(algorithm), ranks, 4, gradients);
      ReferenceTopK reference(kCount, static_cast<std::size_t>(ranks),
                              {.ratio = 0.1, .two_shot = algorithm == Algorithm::two_shot});
      for (std::size_t step = 0; step < 4; ++step) {
        const std::vector<float> expected = reference.step(gradients(static_cast<int>(step)));
        for (const Rows& results : got.results) EXPECT_EQ(results[step], expected) << "step " << step;
      }
    }
  // From the very first step on, nothing anywhere.
  for (const Algorithm algorithm : kAlgorithms) {
    const Course got = run(one_parameter({kCount}, TopK{}), with(algorithm), 3, 2,
                           [](int) { return Rows(3, std::vector<float>(kCount)); });
    for (const Rows& results : got.results)
      for (const auto& result : results) EXPECT_EQ(result, std::vector<float>(kCount));
  }
}

TEST(SessionSparse, NotFiniteByPolicy) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Algorithm algorithm : kAlgorithms)
    for (const NonFinitePolicy policy :
         {NonFinitePolicy::propagate, NonFinitePolicy::skip_step, NonFinitePolicy::error}) {
      SessionOptions options = with(algorithm);
      options.nonfinite = policy;
      const Model model = one_parameter({5000}, TopK{.ratio = 0.01});
      std::vector<std::uint64_t> counts(3);
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, model, options);
        Gradients gradients(model);
        reduce(*session, gradients, 1);
        EXPECT_TRUE(session->commit());
        const std::vector<float> before = residuals(*session);
        gradients.fill_bell(7);
        if (transport->rank() == 1)
          for (std::size_t i = 0; i < 60; ++i) gradients.set(0, 13 * i, nan);  // more than are sent
        if (policy == NonFinitePolicy::error) {
          EXPECT_ERROR(session->all_reduce(gradients.pointers()), Errc::nonfinite, "non-finite");
          session->rollback();
        } else {
          session->all_reduce(gradients.pointers());
          counts[static_cast<std::size_t>(transport->rank())] = session->step_statistics().nonfinite;
          EXPECT_TRUE(std::isnan(gradients.get(0, 0)));
          EXPECT_EQ(session->commit(), policy == NonFinitePolicy::propagate);
        }
        EXPECT_TRUE(policy == NonFinitePolicy::propagate || same(residuals(*session), before));
        EXPECT_TRUE(all_finite(residuals(*session)));
        reduce(*session, gradients, 2);
        EXPECT_TRUE(session->commit());
        EXPECT_TRUE(all_finite(gradients.values(0)));
      });
      if (policy != NonFinitePolicy::error) {
        EXPECT_GE(counts[0], 60u);
        EXPECT_EQ(counts[1], counts[0]);
        EXPECT_EQ(counts[2], counts[0]);
      }
    }
}

TEST(SessionSparse, NeighboursOfWhatIsNotFiniteAreSentAgain) {
  // Ranks choose different elements, whose sums share a block of values with those of a rank that met a NaN.
  constexpr std::size_t kCount = 1200, kChosen = 12;
  const Model model = one_parameter({kCount}, TopK{.ratio = 0.01, .values = Int8{}, .reselect = false});
  std::vector<std::vector<float>> kept(3);
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
    Gradients gradients(model);
    gradients.fill([](std::size_t, std::size_t) { return 0.0f; });
    for (std::size_t i = 0; i < kChosen; ++i) gradients.set(0, 15 * i + me, static_cast<float>(10 * (me + 1) + i));
    if (me == 1) gradients.set(0, 1, std::numeric_limits<float>::quiet_NaN());
    session->all_reduce(gradients.pointers());
    for (std::size_t i = 0; i < kChosen; ++i) EXPECT_TRUE(std::isnan(gradients.get(0, 15 * i + 2)));
    session->commit();
    kept[me] = session->sender_residual(0);
  });
  for (const std::size_t rank : {0ul, 2ul})
    for (std::size_t i = 0; i < kChosen; ++i) {
      const std::size_t at = 15 * i + rank;
      EXPECT_NEAR(kept[0][at] + kept[1][at] + kept[2][at], static_cast<float>(10 * (rank + 1) + i), 1e-4) << at;
    }
}

TEST(SessionSparse, WithoutFeedbackOnlyByName) {
  SessionOptions options = with(Algorithm::two_shot);
  options.error_feedback = false;
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    EXPECT_ERROR(sealed_session(transport, one_parameter({100}, TopK{}), options), Errc::invalid_argument,
                 "without-feedback");
    options.momentum = {.factor = 0.9f, .optimizer_momentum = 0.0};
    EXPECT_ERROR(sealed_session(transport, one_parameter({100}, TopK{}), options), Errc::invalid_argument,
                 "error_feedback");
    options.momentum = {};
    const Model model = one_parameter({1000}, TopK{.ratio = 0.1, .without_feedback = true});
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    gradients.fill([](std::size_t, std::size_t i) { return static_cast<float>(i); });
    for (int step = 0; step < 2; ++step) {
      gradients.fill([](std::size_t, std::size_t i) { return static_cast<float>(i); });
      session->all_reduce(gradients.pointers());
      for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(gradients.get(0, i), i < 900 ? 0.0f : static_cast<float>(i));
    }
  });
}

TEST(SessionSparse, RanksThatDisagreeSayInWhat) {
  const auto outcomes = run_each(local::make(2), [](const std::shared_ptr<Transport>& transport) {
    const double ratio = transport->rank() == 0 ? 0.01 : 0.02;
    sealed_session(transport, one_parameter({5000}, TopK{.ratio = ratio}), with(Algorithm::two_shot));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, Errc::mismatch);
    EXPECT_TRUE(contains(outcome.message, "topk:ratio=0.01"));
    EXPECT_TRUE(contains(outcome.message, "topk:ratio=0.02"));
  }
}

TEST(SessionSparse, SpecsAreReadAndRefused) {
  for (const char* spec : {"topk:ratio=0.01", "topk:ratio=0.05,per-bucket,sampled,union,warm-up=100+int8:block=64",
                           "topk:ratio=1,without-feedback+hadamard:32+int4:block=32"})
    EXPECT_EQ(parse_codec(spec).spec(), spec);
  EXPECT_EQ(parse_codec("topk").spec(), "topk:ratio=0.01");
  EXPECT_EQ(parse_codec("topk+bf16").spec(), "topk:ratio=0.01+bf16:block=256");
  EXPECT_ERROR(parse_codec("topk:ratio=0"), Errc::invalid_argument, "ratio must be above 0 and at most 1, got 0");
  EXPECT_ERROR(parse_codec("topk:ratio=1.5"), Errc::invalid_argument, "got 1.5");
  EXPECT_ERROR(parse_codec("topk:ratio=nan"), Errc::invalid_argument, "got nan");
  EXPECT_ERROR(parse_codec("topk:ratio=x"), Errc::invalid_argument, "\"ratio=x\" is not a number");
  EXPECT_ERROR(parse_codec("topk:k=5"), Errc::invalid_argument, "unknown option \"k=5\"");
  EXPECT_ERROR(parse_codec("topk:ratio=0.1,ratio=0.2"), Errc::invalid_argument, "ratio is given twice");
  EXPECT_ERROR(parse_codec("powersgd:one-factor,one-factor"), Errc::invalid_argument, "one-factor is given twice");
  EXPECT_ERROR(parse_codec("topk+int9"), Errc::invalid_argument, "not known");
  EXPECT_ERROR(parse_codec("topk+topk"), Errc::invalid_argument, "codec of blocks");
}

}  // namespace
}  // namespace tightwire::testing::session_sparse
