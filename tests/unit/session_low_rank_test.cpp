// PowerSgd in a Session: low-rank gradients come through, nothing is lost, and every rank holds the same bytes.
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
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_low_rank {
namespace {

/// Several chunks, for matrices of a few thousand elements.
SessionOptions in_chunks(Algorithm algorithm) {
  SessionOptions options = with(algorithm);
  options.plan.share_elements = 500;
  return options;
}

/// A matrix of a rank, as the sum of outer products; the same for the same seed.
std::vector<float> of_rank(std::size_t rank, std::size_t rows, std::size_t columns, std::uint64_t seed) {
  FastRandom random(seed);
  std::vector<float> matrix(rows * columns);
  for (std::size_t k = 0; k < rank; ++k) {
    std::vector<float> left(rows), right(columns);
    for (float& x : left) x = random.bell();
    for (float& x : right) x = random.bell();
    for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] += left[i / columns] * right[i % columns];
  }
  return matrix;
}
double norm(const std::vector<float>& x) {
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference);
}

TEST(PowerSgdSession, AMatrixOfTheRankComesThroughAfterTwoSteps) {
  for (const bool both : {false, true})
    for (const auto& [rank, matrix_rank] : {std::pair{1ul, 1ul}, {4ul, 2ul}, {4ul, 4ul}, {7ul, 6ul}}) {
      const std::vector<float> gradient = of_rank(matrix_rank, 60, 90, 3);
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        const Model model = one_parameter({60, 90}, PowerSgd{.rank = rank, .both_factors = both});
        const auto session = sealed_session(transport, model, in_chunks(Algorithm::two_shot));
        Gradients buffer(model);
        std::vector<float> in(gradient.size()), out(gradient.size());
        for (int step = 0; step < 4; ++step) {
          buffer.fill([&](std::size_t, std::size_t i) { return gradient[i]; });
          session->all_reduce(buffer.pointers());
          session->commit();
          for (std::size_t i = 0; i < in.size(); ++i) in[i] += gradient[i], out[i] += buffer.get(0, i);
        }
        EXPECT_LT(distance(in, out), 1e-4 * norm(in)) << "rank " << rank << " of " << matrix_rank;
        EXPECT_TRUE(buffer.guards_intact());
      });
    }
}

TEST(PowerSgdSession, WhatGoesInComesOutOrIsKept) {
  constexpr std::size_t kSteps = 30;
  for (const Algorithm algorithm : kAlgorithms)
    for (const ElementType type : {ElementType::f32, ElementType::bf16})
      for (const bool both : {false, true})
        for (const Codec& factors : {Codec{Dense{}}, Codec{Int8{}}, Codec{Bf16{}}}) {
          const Model model =
              one_parameter({40, 70}, PowerSgd{.rank = 3, .factors = factors, .both_factors = both}, type);
          SCOPED_TRACE(std::string(to_string(algorithm)) + ", " + model[0].codec.spec());
          EXPECT_TRUE(conserves(model, in_chunks(algorithm), kSteps, 2e-5));
        }
}

Model mixed() {
  return {{"conv", {64, 16, 3, 3}, ElementType::f32, PowerSgd{.rank = 4}},
          {"linear", {100, 257}, ElementType::bf16, PowerSgd{.rank = 4, .factors = Int8{}}},
          {"bias", {300}, ElementType::f32, PowerSgd{.rank = 4}},
          {"small", {3, 5}, ElementType::f32, PowerSgd{.rank = 4}},
          {"int8", {500}, ElementType::f32, Int8{}},
          {"empty", {0, 5}, ElementType::f32, PowerSgd{.rank = 4}},
          {"topk", {2000}, ElementType::f32, TopK{.ratio = 0.05}},
          {"other", {70, 80}, ElementType::f32, PowerSgd{.rank = 2}}};
}

TEST(PowerSgdSession, SameBitsOnAllRanksInAnyOrder) {
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::string(to_string(algorithm)) + " on " + std::to_string(ranks));
      Steps steps{.model = mixed(), .options = in_chunks(algorithm), .steps = 5};
      steps.options.bucket_bytes = 60'000;
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

TEST(PowerSgdSession, CutsChangeNothingWhereFactorsAreExact) {
  // Otherwise what a sum loses goes to the rank that owns it.
  for (const bool both : {false, true}) {
    Steps steps{.model = {{"a", {64, 144}, ElementType::f32, PowerSgd{.rank = 4, .both_factors = both}},
                          {"b", {100, 57}, ElementType::bf16, PowerSgd{.rank = 3, .both_factors = both}},
                          {"c", {333}, ElementType::f32, Codec{}}},
                .options = in_chunks(Algorithm::two_shot),
                .steps = 5};
    const auto base = steps.run(3);
    EXPECT_TRUE(all_equal(base));
    for (const std::size_t share : {16u, 5000u}) {
      steps.options.plan.share_elements = share;
      EXPECT_TRUE(steps.run(3) == base) << "shares of " << share;
    }
  }
}

TEST(PowerSgdSession, BeforeItsStartItIsExact) {
  const Codec late = PowerSgd{.rank = 2, .start_step = 3};
  for (const Algorithm algorithm : kAlgorithms) {
    Steps steps{.model = one_parameter({50, 60}, late), .options = in_chunks(algorithm), .steps = 3};
    Steps exact{.model = one_parameter({50, 60}, Codec{}), .options = in_chunks(algorithm), .steps = 3};
    EXPECT_TRUE(steps.run(3) == exact.run(3));
    steps.steps = exact.steps = 4;
    EXPECT_FALSE(steps.run(3) == exact.run(3));
  }
}

TEST(PowerSgdSession, ARolledBackStepHasNotHappened) {
  for (const bool both : {false, true}) {
    const auto run_with = [&](bool disturbed) {
      std::vector<std::vector<float>> kept(3);
      std::vector<std::vector<std::byte>> bytes(3);
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        const Model model = {
            {"w", {40, 90}, ElementType::f32, PowerSgd{.rank = 3, .start_step = 2, .both_factors = both}},
            {"b", {90}, ElementType::f32, Codec{}}};
        const auto session = sealed_session(transport, model, in_chunks(Algorithm::two_shot));
        Gradients gradients(model);
        const auto me = static_cast<std::size_t>(transport->rank());
        for (std::uint64_t step = 0; step < 7; ++step) {
          if (disturbed && step % 2 == 1) {
            reduce(*session, gradients, 100 + step);
            session->all_reduce(gradients.pointers());
            session->rollback();
          }
          reduce(*session, gradients, step + 1);
          session->commit();
        }
        kept[me] = residuals(*session);
        bytes[me] = gradients.bytes();
      });
      return std::pair{kept, bytes};
    };
    EXPECT_TRUE(run_with(true) == run_with(false));
  }
}

/// What a rank holds after every step, and its residuals in the end.
struct Course {
  std::vector<std::vector<std::byte>> gradients;
  std::vector<float> residuals;
  bool operator==(const Course&) const = default;
};
enum class Looks { never, between_uses, saves_and_restores };

std::vector<Course> course(const Codec& codec, ElementType type, bool rollback, Looks looks) {
  SessionOptions options = in_chunks(Algorithm::two_shot);
  options.rollback = rollback;
  std::vector<Course> courses(2);
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const Model model = {{"w", {40, 90}, type, codec}, {"b", {90}, ElementType::f32, Codec{}}};
    auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    Course& mine = courses[static_cast<std::size_t>(transport->rank())];
    const auto look = [&] {
      if (looks == Looks::between_uses) residuals(*session);
    };
    for (std::uint64_t step = 0; step < 8; ++step) {
      if (rollback && step == 4) {
        reduce(*session, gradients, 77);
        look();
        session->rollback();
      }
      reduce(*session, gradients, step + 1);
      look();
      if (step % 3 == 1) session->all_reduce(gradients.pointers());
      look();
      session->commit();
      mine.gradients.push_back(gradients.bytes());
      look();
      if (looks == Looks::saves_and_restores && step % 2 == 0) {
        const std::vector<std::byte> state = session->save();
        session.reset();
        session = sealed_session(transport, model, options);
        session->restore(state);
      }
    }
    mine.residuals = residuals(*session);
  });
  return courses;
}

TEST(PowerSgdSession, ResidualsThatAreReadSavedOrLeftForLaterAreTheSameBits) {
  for (const bool rollback : {true, false})
    for (const bool both : {true, false})
      for (const ElementType type : {ElementType::f32, ElementType::bf16}) {
        const PowerSgd changes{.rank = 2, .both_factors = both, .changes = {{3, 4}, {6, 1}}};
        const auto never = course(changes, type, rollback, Looks::never);
        EXPECT_EQ(never[0].gradients, never[1].gradients);
        EXPECT_NE(never[0].residuals, never[1].residuals);
        EXPECT_TRUE(course(changes, type, rollback, Looks::between_uses) == never);
        EXPECT_TRUE(course(changes, type, rollback, Looks::saves_and_restores) == never);
      }
}

/// A look between the reduction and the commit, and at no other time: what it sees is what the commit keeps, where
/// there is one copy of the residual, and what the commit before kept, where there are two.
TEST(PowerSgdSession, ALookAmidAStepSeesNothingTwice) {
  for (const bool rollback : {true, false})
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const Model model = one_parameter({40, 90}, PowerSgd{.rank = 2});
      SessionOptions options = in_chunks(Algorithm::two_shot);
      options.rollback = rollback;
      const auto looking = sealed_session(transport, model, options), plain = sealed_session(transport, model, options);
      Gradients of_looking(model), of_plain(model);
      std::vector<float> kept_before(40 * 90);
      for (std::uint64_t step = 0; step < 4; ++step) {
        reduce(*looking, of_looking, step);
        const std::vector<float> seen = looking->sender_residual(0);
        EXPECT_TRUE(same(looking->sender_residual(0), seen)) << "a second look, in step " << step;
        looking->commit();
        reduce(*plain, of_plain, step);
        plain->commit();
        EXPECT_EQ(of_looking.bytes(), of_plain.bytes()) << step;
        const std::vector<float> kept = plain->sender_residual(0);
        EXPECT_TRUE(same(seen, rollback ? kept_before : kept)) << step;
        kept_before = kept;
      }
      EXPECT_TRUE(same(looking->sender_residual(0), kept_before));
    });
}

TEST(PowerSgdSession, AResidualIsNotReadWhileItIsWritten) {
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    const Model model = one_parameter({40, 70}, PowerSgd{.rank = 3});
    const auto session = sealed_session(transport, model, in_chunks(Algorithm::two_shot));
    Gradients gradients(model);
    gradients.fill_bell(1);
    const auto pointers = gradients.pointers();
    auto handle = session->start(0, pointers);
    EXPECT_ERROR(session->sender_residual(0), Errc::invalid_argument, "is under way");
    handle.wait();
    EXPECT_EQ(session->sender_residual(0).size(), 40u * 70);
    session->commit();
  });
}

/// Errors of the first steps on one fixed matrix, without feedback.
std::vector<double> errors_of_a_fixed_matrix(bool both, std::size_t steps) {
  // A spectrum that falls slowly: one iteration is far from enough.
  std::vector<float> gradient(80 * 120);
  for (std::size_t k = 0; k < 30; ++k) {
    const std::vector<float> part = of_rank(1, 80, 120, 100 + k);
    for (std::size_t i = 0; i < part.size(); ++i) gradient[i] += part[i] * std::pow(0.85f, static_cast<float>(k));
  }
  std::vector<double> errors;
  SessionOptions options = in_chunks(Algorithm::two_shot);
  options.error_feedback = false;
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const Model model = one_parameter({80, 120}, PowerSgd{.rank = 4, .both_factors = both, .without_feedback = true});
    const auto session = sealed_session(transport, model, options);
    Gradients buffer(model);
    for (std::size_t step = 0; step < steps; ++step) {
      buffer.fill([&](std::size_t, std::size_t i) { return gradient[i]; });
      session->all_reduce(buffer.pointers());
      session->commit();
      if (transport->rank() == 0) errors.push_back(distance(gradient, buffer.values(0)) / norm(gradient));
    }
  });
  return errors;
}

TEST(PowerSgdSession, TheWarmStartMakesTheErrorFall) {
  for (const bool both : {false, true}) {
    const std::vector<double> errors = errors_of_a_fixed_matrix(both, 12);
    for (std::size_t step = 1; step < errors.size(); ++step) EXPECT_LE(errors[step], errors[step - 1] * (1 + 1e-5));
    // With factors drawn anew in every step it would stay where it began.
    EXPECT_LT(errors.back(), 0.9 * errors.front()) << errors.front() << " -> " << errors.back();
    EXPECT_NEAR(errors.back(), errors[errors.size() - 2], 0.01);
  }
}

TEST(PowerSgdSession, MatricesOfEqualShapeGoTogetherAndAsEachByItself) {
  Model model;
  for (int m = 0; m < 5; ++m)
    model.push_back({"w" + std::to_string(m), {m == 2 ? 96 : 64, 80}, ElementType::f32, PowerSgd{.rank = 3}});
  const auto says = [&](const SessionOptions& options, const std::string& what) {
    run_all(1, [&](const std::shared_ptr<Transport>& transport) {
      const std::string description = sealed_session(transport, model, options)->description();
      EXPECT_NE(description.find(what), std::string::npos) << description;
    });
  };
  Steps steps{.model = model, .options = in_chunks(Algorithm::two_shot), .steps = 3};
  says(steps.options, "powersgd of 5 matrices, together 4 of 64 x 80, 1 of 96 x 80:");
  const auto together = steps.run(2);
  EXPECT_TRUE(all_equal(together));
  steps.options.bucket_bytes = 1;
  says(steps.options, "powersgd of 1 matrices, together 1 of 64 x 80:");
  EXPECT_TRUE(steps.run(2) == together);
}

TEST(PowerSgdSession, BytesAreThoseOfTheFactors) {
  const Model model = {{"w", {128, 512}, ElementType::f32, PowerSgd{.rank = 4, .both_factors = false}},
                       {"b", {512}, ElementType::f32, Codec{}}};
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = in_chunks(Algorithm::two_shot);
    options.plan.share_elements = 1 << 16;
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    std::vector<std::uint64_t> sent;
    for (int step = 0; step < 4; ++step) {
      reduce(*session, gradients, 1);
      session->commit();
      sent.push_back(session->last_step().sent_bytes);
      EXPECT_EQ(session->last_step().gradient_bytes, (128u * 512 + 512) * 4);
      EXPECT_EQ(session->last_step().calls, 1u);
    }
    // Two frames: half of what is sent to the other rank, half of the sums back.
    EXPECT_EQ(sent[0], (4 * 128 + 512) * 4 + 2 * sizeof(FrameHeader));
    EXPECT_EQ(sent[1], (4 * 512 + 512) * 4 + 2 * sizeof(FrameHeader));
    EXPECT_EQ(sent[2], sent[0]);
    EXPECT_EQ(sent[3], sent[1]);
  });
}

TEST(PowerSgdSession, NotFiniteReachesAllRanksAndIsForgotten) {
  const Model model = one_parameter({40, 70}, PowerSgd{.rank = 3});
  for (const NonFinitePolicy policy : {NonFinitePolicy::propagate, NonFinitePolicy::skip_step}) {
    SessionOptions options = in_chunks(Algorithm::two_shot);
    options.nonfinite = policy;
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, options);
      Gradients gradients(model);
      reduce(*session, gradients, 1);
      EXPECT_TRUE(session->commit());
      const std::vector<float> before = residuals(*session);
      gradients.fill_bell(3);
      if (transport->rank() == 1) gradients.set(0, 77, std::numeric_limits<float>::quiet_NaN());
      session->all_reduce(gradients.pointers());
      EXPECT_GT(session->step_statistics().nonfinite, 0u);
      for (const float x : gradients.values(0)) ASSERT_EQ(tightwire::detail::to_bits(x), 0x7fc00000u);
      EXPECT_EQ(session->commit(), policy == NonFinitePolicy::propagate);
      EXPECT_TRUE(same(residuals(*session), before));
      for (std::uint64_t step = 2; step < 4; ++step) {
        reduce(*session, gradients, step);
        EXPECT_TRUE(session->commit());
        EXPECT_TRUE(all_finite(gradients.values(0)));
        EXPECT_TRUE(all_finite(residuals(*session)));
      }
    });
  }
}

TEST(PowerSgdSession, ZeroHugeAndTinyMatrices) {
  for (const float scale : {0.0f, 1e30f, 1e-30f}) {
    const std::vector<float> gradient = of_rank(2, 40, 60, 9);
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const Model model = one_parameter({40, 60}, PowerSgd{.rank = 2});
      const auto session = sealed_session(transport, model, in_chunks(Algorithm::two_shot));
      Gradients buffer(model);
      std::vector<float> scaled(gradient.size());
      for (int step = 0; step < 3; ++step) {
        for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] = gradient[i] * scale;
        buffer.fill([&](std::size_t, std::size_t i) { return scaled[i]; });
        session->all_reduce(buffer.pointers());
        session->commit();
        EXPECT_TRUE(all_finite(buffer.values(0)));
        EXPECT_TRUE(all_finite(residuals(*session)));
      }
      EXPECT_TRUE(scale != 0.0f || buffer.values(0) == scaled);
    });
  }
}

TEST(PowerSgdSession, WithoutFeedbackOnlyByName) {
  SessionOptions options = in_chunks(Algorithm::two_shot);
  options.error_feedback = false;
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    EXPECT_ERROR(sealed_session(transport, one_parameter({40, 70}, PowerSgd{}), options), Errc::invalid_argument,
                 "without-feedback");
    const auto session = sealed_session(transport, one_parameter({4, 3}, PowerSgd{}), options);  // sent whole
    EXPECT_TRUE(contains(session->description(), "exact, since factors of 4 x 3"));
  });
}

TEST(PowerSgdSession, SpecsAreReadAndRefused) {
  for (const char* spec : {"powersgd:rank=4", "powersgd:rank=2,start=1000,one-factor,without-feedback+int8:block=256"})
    EXPECT_EQ(parse_codec(spec).spec(), spec);
  EXPECT_EQ(parse_codec("powersgd").spec(), "powersgd:rank=4");
  EXPECT_ERROR(parse_codec("powersgd:rank=0"), Errc::invalid_argument, "rank must be from 1 to 64, got 0");
  EXPECT_ERROR(parse_codec("powersgd:rank=65"), Errc::invalid_argument, "got 65");
  EXPECT_ERROR(parse_codec("powersgd:rank=-1"), Errc::invalid_argument, "\"rank=-1\" is not a number");
  EXPECT_ERROR(parse_codec("powersgd:ranks=4"), Errc::invalid_argument, "unknown option \"ranks=4\"");
  EXPECT_ERROR(parse_codec("powersgd+topk"), Errc::invalid_argument, "codec of blocks");
}

TEST(PowerSgdSession, OneBucketStartsAlike) {
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    const Model model = {{"a", {40, 70}, ElementType::f32, PowerSgd{}},
                         {"b", {40, 70}, ElementType::f32, PowerSgd{.start_step = 5}}};
    EXPECT_ERROR(sealed_session(transport, model, in_chunks(Algorithm::two_shot)), Errc::invalid_argument,
                 "must start alike");
  });
}

}  // namespace
}  // namespace tightwire::testing::session_low_rank
