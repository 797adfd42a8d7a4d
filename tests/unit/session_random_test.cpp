// RandomK in a Session: the same elements on all ranks, no indices on the wire, and nothing is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/one_parameter.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_random {
namespace {

TEST(RandomK, DrawsOneOfEveryRun) {
  for (const auto& [elements, drawn] : {std::pair{1000ul, 10ul}, {1003ul, 17ul}, {5ul, 5ul}, {100'000ul, 1ul}}) {
    std::vector<std::size_t> hits(elements);
    for (std::uint32_t use = 0; use < 2000; ++use) {
      std::vector<std::uint32_t> indices(drawn);
      sparse::draw(9, use, 1, elements, indices);
      for (std::size_t i = 0; i < drawn; ++i) {
        ASSERT_GE(indices[i], elements * i / drawn);
        ASSERT_LT(indices[i], elements * (i + 1) / drawn);
        ++hits[indices[i]];
      }
    }
    if (elements > 2000) continue;
    // 2,000 draws of one in `run`: none further than six deviations from its expectation, which happens by chance in
    // one of 500,000 runs of this test.
    const double share = static_cast<double>(drawn) / static_cast<double>(elements);
    for (const std::size_t hit : hits)
      EXPECT_NEAR(static_cast<double>(hit), 2000 * share, 6 * std::sqrt(2000 * share) * 1.1 + 1e-9);
  }
  std::vector<std::uint32_t> a(100), b(100);
  sparse::draw(1, 2, 3, 100'000, a);
  for (const auto& [seed, use, parameter] : {std::tuple{2u, 2u, 3u}, {1u, 3u, 3u}, {1u, 2u, 4u}}) {
    sparse::draw(seed, use, parameter, 100'000, b);
    EXPECT_NE(a, b);
  }
}

TEST(RandomK, MeansOfTheDrawnElementsAndNothingElse) {
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {1, 2, 3, 5}) {
      run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
        const Model model = one_parameter({2000}, RandomK{.ratio = 0.05});
        const auto session = sealed_session(transport, model, with(algorithm));
        Gradients gradients(model);
        gradients.fill([&](std::size_t, std::size_t i) {
          return static_cast<float>(i + 1) * static_cast<float>(transport->rank() + 1);
        });
        session->all_reduce(gradients.pointers());
        std::size_t drawn = 0;
        for (std::size_t i = 0; i < 2000; ++i) {
          const float x = gradients.get(0, i);
          if (x == 0.0f) continue;
          ++drawn;
          EXPECT_FLOAT_EQ(x, static_cast<float>(i + 1) * static_cast<float>(ranks + 1) / 2);
        }
        EXPECT_EQ(drawn, 100u);
      });
    }
}

TEST(RandomK, RatioOneIsTheExactSum) {
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {2, 3, 7}) {
      const Steps exact{.model = one_parameter({5003}, Codec{}), .options = with(algorithm)};
      const Steps random{.model = one_parameter({5003}, RandomK{.ratio = 1}), .options = with(algorithm)};
      EXPECT_TRUE(random.run(ranks) == exact.run(ranks)) << to_string(algorithm) << " on " << ranks;
    }
}

TEST(RandomK, NothingIsLostInAHundredSteps) {
  constexpr std::size_t kSteps = 100;
  constexpr std::int64_t kCount = 1000;
  for (const Algorithm algorithm : kAlgorithms)
    for (const ElementType type : {ElementType::f32, ElementType::bf16})
      for (const Codec& values : {Codec{Dense{}}, Codec{Int8{}}, Codec{Bf16{}}}) {
        // one_shot does not count the rounding of its sum to a buffer of 16 bits.
        if (algorithm == Algorithm::one_shot && type != ElementType::f32) continue;
        const Model model = one_parameter({kCount}, RandomK{.ratio = 0.1, .values = values}, type);
        SCOPED_TRACE(std::string(to_string(algorithm)) + ", " + model[0].codec.spec());
        EXPECT_TRUE(conserves(model, with(algorithm), kSteps, 1e-5));
      }
}

TEST(RandomK, SameBitsOnAllRanksAndOnRollback) {
  const Model model = {{"a", {5000}, ElementType::f32, RandomK{.ratio = 0.02}},
                       {"b", {701}, ElementType::bf16, RandomK{.ratio = 0.3, .values = Int4{}}},
                       {"c", {0}, ElementType::f32, RandomK{}},
                       {"d", {3000}, ElementType::f32, TopK{}},
                       {"e", {300}, ElementType::f32, Int8{}}};
  for (const Algorithm algorithm : kAlgorithms) {
    Steps steps{.model = model, .options = with(algorithm), .steps = 5};
    steps.options.bucket_bytes = 24'000;
    const auto base = steps.run(4);
    EXPECT_TRUE(all_equal(base));
    steps.reduce = in_random_order(3);
    EXPECT_TRUE(steps.run(4) == base);
  }
}

TEST(RandomK, BytesAreThoseOfTheDrawnElements) {
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const Model model = one_parameter({64'000}, RandomK{.ratio = 0.1});
    const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
    Gradients gradients(model);
    reduce(*session, gradients, 1);
    EXPECT_LE(session->step_statistics().sent_bytes, 6400 * 4 + 2 * sizeof(FrameHeader) + 4096);
    EXPECT_EQ(session->step_statistics().gradient_bytes, 64'000u * 4);
  });
}

TEST(RandomK, WithoutFeedbackItIsUnbiased) {
  SessionOptions options = with(Algorithm::two_shot);
  options.error_feedback = false;
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    EXPECT_ERROR(sealed_session(transport, one_parameter({100}, RandomK{}), options), Errc::invalid_argument,
                 "without-feedback");
  });
  const Model model = one_parameter({400}, RandomK{.ratio = 0.25, .without_feedback = true});
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    std::vector<double> mean(400);
    constexpr int kSteps = 4000;
    for (int step = 0; step < kSteps; ++step) {
      gradients.fill([](std::size_t, std::size_t) { return 1.0f; });
      session->all_reduce(gradients.pointers());
      session->commit();
      for (std::size_t i = 0; i < 400; ++i) mean[i] += static_cast<double>(gradients.get(0, i)) / kSteps;
    }
    // 4 times a share of a quarter: deviation sqrt(3 / 4000); six of them.
    for (const double x : mean) EXPECT_NEAR(x, 1.0, 6 * std::sqrt(3.0 / kSteps));
  });
}

TEST(RandomK, NotFiniteIsCountedAndLeavesNoTrace) {
  const Model model = one_parameter({3000}, RandomK{.ratio = 0.1});
  std::vector<std::uint64_t> counts(2);
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
    Gradients gradients(model);
    reduce(*session, gradients, 1);
    session->commit();
    gradients.fill_bell(3);
    if (transport->rank() == 1)
      for (std::size_t i = 0; i < 3000; i += 2) gradients.set(0, i, std::numeric_limits<float>::infinity());
    session->all_reduce(gradients.pointers());
    counts[static_cast<std::size_t>(transport->rank())] = session->step_statistics().nonfinite;
    session->commit();
    EXPECT_TRUE(all_finite(residuals(*session)));
  });
  EXPECT_GT(counts[0], 0u);
}

TEST(RandomK, NeighboursOfWhatIsNotFiniteKeepTheirResiduals) {
  // An element that is not finite takes the other 63 of its block of values along, on all ranks.
  for (const Algorithm algorithm : kAlgorithms)
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const Model model = one_parameter({640}, RandomK{.ratio = 1, .values = Int4{.block = 64}});
      const auto session = sealed_session(transport, model, with(algorithm));
      Gradients gradients(model);
      reduce(*session, gradients, 1);
      session->commit();
      const std::vector<float> before = session->sender_residual(0);
      gradients.fill_bell(7);
      if (transport->rank() == 1) gradients.set(0, 70, std::numeric_limits<float>::quiet_NaN());
      session->all_reduce(gradients.pointers());
      session->commit();
      const std::vector<float> after = session->sender_residual(0);
      for (std::size_t i = 64; i < 128; ++i) {
        EXPECT_TRUE(std::isnan(gradients.get(0, i)));
        ASSERT_EQ(after[i], before[i]) << i;
      }
      EXPECT_NE(after[63], before[63]);
    });
}

TEST(RandomK, OneThatIsNotFiniteAndNotDrawnIsKnownToAllRanks) {
  for (const Algorithm algorithm : kAlgorithms) {
    SessionOptions options = with(algorithm);
    options.nonfinite = NonFinitePolicy::skip_step;
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const Model model = one_parameter({3000}, RandomK{.ratio = 0.01});
      const auto session = sealed_session(transport, model, options);
      Gradients gradients(model);
      for (std::uint64_t step = 0; step < 4; ++step) {
        gradients.fill_bell(step);
        // One element of a hundred is drawn; of these two, next to each other, at most one.
        if (transport->rank() == 1 && step == 2)
          for (const std::size_t i : {1550ul, 1551ul}) gradients.set(0, i, std::numeric_limits<float>::quiet_NaN());
        session->all_reduce(gradients.pointers());
        EXPECT_EQ(session->commit(), step != 2) << "step " << step;
      }
    });
  }
}

TEST(RandomK, WhatA16BitBufferCannotHoldIsCounted) {
  for (const Codec& codec : {Codec{RandomK{.ratio = 0.5}}, Codec{TopK{.ratio = 0.5}}, Codec{PowerSgd{.rank = 2}}})
    for (const Algorithm algorithm : kAlgorithms) {
      SessionOptions options = with(algorithm);
      options.average = false;
      options.nonfinite = NonFinitePolicy::skip_step;
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        const Model model = {{"w", {40, 50}, ElementType::f16, codec}};
        const auto session = sealed_session(transport, model, options);
        Gradients gradients(model);
        for (const float size : {1.0f, 30'000.0f, 1.0f}) {
          gradients.fill([&](std::size_t, std::size_t) { return size; });
          session->all_reduce(gradients.pointers());
          EXPECT_EQ(session->commit(), size == 1.0f) << codec.spec();
        }
      });
    }
}

}  // namespace
}  // namespace tightwire::testing::session_random
