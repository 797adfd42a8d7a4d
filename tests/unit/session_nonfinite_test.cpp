// NaN, infinity and the ends of the 16-bit ranges: the same verdict on every rank, and nothing of them stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_nonfinite {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(NonFinite, ASkippedStepIsSkippedByEveryRankAndLeavesNoTrace) {
  const Model model = mixed_model();
  for (const Algorithm algorithm : kAlgorithms)
    for (std::size_t p = 0; p < model.size(); ++p) {
      if (model[p].count() == 0) continue;
      const float bad = p % 2 == 0 ? kNaN : -kInfinity;
      std::mutex mutex;
      std::vector<std::uint64_t> counts;
      std::vector<std::vector<std::byte>> after(4), clean(4);
      run_all(4, [&](const std::shared_ptr<Transport>& transport) {
        SessionOptions options = in_pieces(algorithm);
        options.nonfinite = NonFinitePolicy::skip_step;
        const auto session = sealed_session(transport, model, options);
        const auto straight = sealed_session(transport, model, options);
        Gradients gradients(model);
        for (Session* each : {session.get(), straight.get()}) {
          reduce(*each, gradients, 1);
          EXPECT_TRUE(each->commit());
        }
        const std::vector<float> before = residuals(*session);
        gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()));
        if (transport->rank() == 1) gradients.set(p, model[p].count() - 1, bad);
        session->all_reduce(gradients.pointers());
        {
          const std::lock_guard lock(mutex);
          counts.push_back(session->step_statistics().nonfinite);
        }
        EXPECT_FALSE(session->commit()) << "rank " << transport->rank();
        EXPECT_EQ(session->steps(), 2u);
        EXPECT_TRUE(same(residuals(*session), before));
        reduce(*session, gradients, 3);
        EXPECT_TRUE(session->commit()) << "the verdict is that of the step alone";
        after[static_cast<std::size_t>(transport->rank())] = gradients.bytes();
        reduce(*straight, gradients, 3);
        straight->commit();
        clean[static_cast<std::size_t>(transport->rank())] = gradients.bytes();
      });
      EXPECT_TRUE(after == clean) << model[p].name;
      EXPECT_GE(counts[0], 1u) << model[p].name;
      for (const std::uint64_t count : counts) EXPECT_EQ(count, counts[0]) << "the same number on every rank";
    }
}

TEST(NonFinite, PropagatesToTheBlockAndNoFurther) {
  // One NaN, first, in the middle and last in its block, and in the tail.
  const Model model = {{"8", {1000}, ElementType::f32, Int8{.block = 64}},
                       {"exact", {1000}, ElementType::f32, Codec{}},
                       {"h", {1000}, ElementType::f16, Int4{}}};
  for (const Algorithm algorithm : kAlgorithms)
    for (const std::size_t at : {std::size_t{192}, std::size_t{200}, std::size_t{255}, std::size_t{999}}) {
      std::vector<std::vector<std::byte>> results(3);
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, model, in_pieces(algorithm));
        const auto clean_session = sealed_session(transport, model, in_pieces(algorithm));
        Gradients gradients(model), clean(model);
        for (Gradients* each : {&gradients, &clean}) each->fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
        if (transport->rank() == 2)
          for (std::size_t p = 0; p < model.size(); ++p) gradients.set(p, at, kNaN);
        session->all_reduce(gradients.pointers());
        EXPECT_TRUE(session->commit());
        clean_session->all_reduce(clean.pointers());
        clean_session->commit();
        results[static_cast<std::size_t>(transport->rank())] = gradients.bytes();
        for (std::size_t p = 0; p < model.size(); ++p)
          for (std::size_t i = 0; i < 1000; ++i) {
            const bool hit = model[p].name == "exact" ? i == at : i / 64 == at / 64;
            if (hit)
              ASSERT_TRUE(std::isnan(gradients.get(p, i))) << model[p].name << " " << i;
            else
              ASSERT_EQ(gradients.get(p, i), clean.get(p, i)) << model[p].name << " " << i;
          }
        EXPECT_TRUE(all_finite(residuals(*session)));
        reduce(*session, gradients, 5);
        for (std::size_t p = 0; p < model.size(); ++p) EXPECT_TRUE(all_finite(gradients.values(p)));
        session->commit();
      });
      EXPECT_TRUE(all_equal(results));
    }
}

TEST(NonFinite, AnErrorReachesEveryRankAndTheSessionGoesOn) {
  const Model model = mixed_model();
  for (const bool background : {false, true})
    run_all(4, [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options = in_pieces(Algorithm::two_shot);
      options.nonfinite = NonFinitePolicy::error;
      const auto session = sealed_session(transport, model, options);
      Gradients gradients(model);
      reduce(*session, gradients, 1);
      session->commit();
      const std::vector<float> before = residuals(*session);
      gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()));
      if (transport->rank() == 3) gradients.set(4, 100, kInfinity);
      if (!background) {
        EXPECT_ERROR(session->all_reduce(gradients.pointers()), Errc::nonfinite, "roll the step back");
      } else {
        int errors = 0;
        std::vector<Handle> handles;
        for (BucketId id = 0; id < session->buckets(); ++id) {
          std::vector<void*> pointers;
          for (const ParameterId p : session->bucket_parameters(id)) pointers.push_back(gradients.pointers()[p]);
          handles.push_back(session->start(id, pointers));
        }
        for (Handle& handle : handles) {
          try {
            handle.wait();
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Errc::nonfinite);
            ++errors;
          }
        }
        EXPECT_EQ(errors, 1);
      }
      session->rollback();
      EXPECT_TRUE(same(residuals(*session), before));
      reduce(*session, gradients, 3);
      EXPECT_TRUE(session->commit());
    });
}

TEST(NonFinite, ASumThatLeavesTheRangeCounts) {
  // Every contribution is finite; only the owner can know.
  for (const Algorithm algorithm : kAlgorithms)
    for (const Codec& codec : {Codec{}, Codec{Int8{}}})
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        SessionOptions options = in_pieces(algorithm);
        options.average = false;
        options.nonfinite = NonFinitePolicy::skip_step;
        const Model model = {{"h", {300}, ElementType::f16, codec}};
        const auto session = sealed_session(transport, model, options);
        Gradients gradients(model);
        gradients.fill([](std::size_t, std::size_t i) { return i == 7 ? 40000.0f : 1.0f; });
        session->all_reduce(gradients.pointers());
        EXPECT_GE(session->step_statistics().nonfinite, 1u) << to_string(algorithm) << ", " << codec.spec();
        EXPECT_FALSE(session->commit()) << to_string(algorithm) << ", " << codec.spec();
      });
}

TEST(HalfPrecision, NeitherTheSumNorTheDivisionLeavesTheRange) {
  struct Case {
    ElementType type;
    int ranks;
    float value;
  };
  for (const Algorithm algorithm : kAlgorithms)
    for (const Codec& codec : {Codec{}, Codec{Int8{}}, Codec{Int4{}}})
      for (const Case& c : {Case{ElementType::f16, 4, 40000.0f}, Case{ElementType::f16, 8, 0x1p-24f},
                            Case{ElementType::bf16, 4, 1.0f + 0x1p-7f}, Case{ElementType::bf16, 4, 0x1p125f},
                            Case{ElementType::bf16, 8, 0x1p-126f}}) {
        const Model model = {{"w", {300}, c.type, codec}};
        run_all(c.ranks, [&](const std::shared_ptr<Transport>& transport) {
          const auto session = sealed_session(transport, model, in_pieces(algorithm));
          Gradients gradients(model);
          gradients.fill([&](std::size_t, std::size_t) { return c.value; });
          session->all_reduce(gradients.pointers());
          // int8 and int4 take a step of eight significant bits, so a constant is off by 2^-9 at each of two encodings,
          // and then there is the rounding of the buffer.
          const float unit = c.type == ElementType::f16 ? std::max(c.value * 0x1p-10f, 0x1p-24f) : c.value * 0x1p-7f;
          const float tolerance = codec.spec() == "exact" ? 0.0f
                                  : c.value == 0x1p-24f   ? 0.0f
                                                          : c.value * 0x1p-8f + unit;
          for (const float x : gradients.values(0)) ASSERT_NEAR(x, c.value, tolerance) << codec.spec();
        });
      }
}

TEST(HalfPrecision, AnOutlierStaysInItsBlockAndFinite) {
  for (const Codec& codec : {Codec{Int8{.block = 64}}, Codec{Int4{}}, Codec{}}) {
    const Model model = {{"w", {640}, ElementType::bf16, codec}};
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const auto with_outlier = sealed_session(transport, model, in_pieces(Algorithm::two_shot));
      const auto without = sealed_session(transport, model, in_pieces(Algorithm::two_shot));
      Gradients gradients(model), plain(model);
      for (Gradients* each : {&gradients, &plain}) each->fill([](std::size_t, std::size_t) { return 1.0f; });
      if (transport->rank() == 0) gradients.set(0, 0, 1e30f);
      with_outlier->all_reduce(gradients.pointers());
      without->all_reduce(plain.pointers());
      EXPECT_EQ(with_outlier->step_statistics().nonfinite, 0u);
      EXPECT_NEAR(gradients.get(0, 0), 0.5e30f, 0.5e30f / 100);
      for (std::size_t i = 64; i < 640; ++i) ASSERT_EQ(gradients.get(0, i), plain.get(0, i)) << i;
      EXPECT_TRUE(all_finite(gradients.values(0)));
    });
  }
}

TEST(LossScaler, RecoversFromAnOverflowWithFeedbackOn) {
  // fp16 gradients computed at a loss scale and unscaled before they are reduced, so that residuals have no scale. An
  // overflow is skipped by all ranks, the scale is halved, and doubled again after some good steps.
  const Model model = {{"w", {1000}, ElementType::f16, Int4{}}, {"b", {50}, ElementType::f32, Codec{}}};
  std::vector<std::vector<float>> histories(3);
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = in_pieces(Algorithm::two_shot);
    options.nonfinite = NonFinitePolicy::skip_step;
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    FastRandom random(static_cast<std::uint64_t>(transport->rank()));
    float scale = 1024;
    int good = 0, skipped = 0;
    auto& history = histories[static_cast<std::size_t>(transport->rank())];
    for (int step = 0; step < 30; ++step) {
      const bool overflow = step == 5 && transport->rank() == 1;
      gradients.fill([&](std::size_t p, std::size_t i) {
        const float at_scale = overflow && p == 0 && i == 3 ? 1e6f : 0.01f * random.bell() * scale;
        return detail::from_f16(detail::to_f16(at_scale)) / scale;
      });
      session->all_reduce(gradients.pointers());
      if (session->commit()) {
        for (std::size_t p = 0; p < 2; ++p) EXPECT_TRUE(all_finite(gradients.values(p)));
        if (++good % 10 == 0) scale *= 2;
      } else {
        ++skipped;
        scale /= 2;
        good = 0;
      }
      EXPECT_TRUE(all_finite(residuals(*session))) << "after step " << step;
      history.push_back(scale);
    }
    EXPECT_EQ(skipped, 1);
    EXPECT_EQ(scale, 2048.0f);
  });
  EXPECT_EQ(histories[0], histories[1]);
  EXPECT_EQ(histories[0], histories[2]);
}

}  // namespace
}  // namespace tightwire::testing::session_nonfinite
