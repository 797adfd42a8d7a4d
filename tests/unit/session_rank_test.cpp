// The rank of PowerSgd changes during training, by steps or by the error: all ranks change alike, what was learnt goes
// on, and nothing is lost.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_session.hpp>
#include <tightwire/low_rank/rank_choice.hpp>

#include "support/model.hpp"
#include "support/one_parameter.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_rank {
namespace {

/// A matrix of 60 x 50 whose singular values are `strengths`, by cosines that are orthogonal to each other.
void fill_spectrum(Gradients& gradients, const std::vector<double>& strengths) {
  gradients.fill([&](std::size_t, std::size_t i) {
    const auto row = static_cast<double>(i / 50), column = static_cast<double>(i % 50);
    double x = 0;
    for (std::size_t k = 0; k < strengths.size(); ++k)
      x += strengths[k] * std::sqrt(2.0 / 60) * std::cos(M_PI / 60 * (row + 0.5) * static_cast<double>(k + 1)) *
           std::sqrt(2.0 / 50) * std::cos(M_PI / 50 * (column + 0.5) * static_cast<double>(k + 1));
    return static_cast<float>(x);
  });
}

TEST(RankOfPowerSgd, FollowsItsSchedule) {
  const Model model = one_parameter({512, 512}, parse_codec("powersgd:rank=1,rank=3@2,rank=2@5"));
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = with(Algorithm::two_shot);
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    std::vector<std::size_t> ranks;
    std::vector<std::uint64_t> bytes;
    for (std::uint64_t step = 0; step < 8; ++step) {
      reduce(*session, gradients, step);
      ranks.push_back(session->factor_rank(0));
      if (step == 2) {  // does not count
        session->rollback();
        continue;
      }
      session->commit();
      bytes.push_back(session->last_step().sent_bytes);
      EXPECT_EQ(bytes.back(), ranks.back() * (512 + 512) * 4 + 4 * sizeof(FrameHeader));
    }
    EXPECT_EQ(ranks, (std::vector<std::size_t>{1, 1, 3, 3, 3, 3, 2, 2}));
  });
}

/// With the leading columns kept, a gradient of rank 2 that is the same every step is still sent whole.
TEST(RankOfPowerSgd, LeadingColumnsGoOn) {
  const Model model = one_parameter({60, 50}, parse_codec("powersgd:rank=2,rank=4@4,rank=2@8"));
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
    Gradients gradients(model);
    for (int step = 0; step < 12; ++step) {
      fill_spectrum(gradients, {3, 1});
      const std::vector<float> wanted = gradients.values(0);
      session->all_reduce(gradients.pointers());
      if (step == 7) session->rollback();
      if (step != 7) session->commit();
      if (step < 3) continue;
      const std::vector<float> got = gradients.values(0);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 1e-4) << "step " << step;
    }
  });
}

TEST(RankOfPowerSgd, NothingIsLostWhereItChanges) {
  for (const char* spec : {"powersgd:rank=1,rank=4@5,rank=2@15", "powersgd:rank=1,rank=3@4,one-factor",
                           "powersgd:rank=1-8,error=0.5", "powersgd:rank=1-8,error=0.9+int8"})
    EXPECT_TRUE(conserves(one_parameter({40, 70}, parse_codec(spec)), with(Algorithm::two_shot), 30, 2e-6)) << spec;
}

TEST(RankOfPowerSgd, SameBitsOnAllRanks) {
  Steps steps{.model = {{"a", {64, 144}, ElementType::f32, parse_codec("powersgd:rank=1-8,error=0.6")},
                        {"b", {100, 57}, ElementType::bf16, parse_codec("powersgd:rank=1-8,error=0.6")}},
              .steps = 25,
              .exponents = 3};
  steps.options.timeout = std::chrono::seconds(20);
  EXPECT_TRUE(all_equal(steps.run(4)));
  steps.options.bucket_bytes = 1;
  steps.reduce = in_random_order(3);
  EXPECT_TRUE(all_equal(steps.run(3)));
}

/// The rank in the end, and the largest error of the last steps, where every gradient has this spectrum. Without
/// feedback, so that what is to be sent is just that.
struct Settled {
  std::size_t rank = 0;
  double error = 0;
};
Settled settle(Session& session, Gradients& gradients, const std::vector<double>& strengths, int steps = 60) {
  Settled settled;
  for (int step = 0; step < steps; ++step) {
    fill_spectrum(gradients, strengths);
    const std::vector<float> wanted = gradients.values(0);
    session.all_reduce(gradients.pointers());
    session.commit();
    if (step + 5 < steps) continue;
    const std::vector<float> got = gradients.values(0);
    double missed = 0, all = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      missed += std::pow(static_cast<double>(got[i]) - static_cast<double>(wanted[i]), 2);
      all += std::pow(static_cast<double>(wanted[i]), 2);
    }
    settled.error = std::max(settled.error, std::sqrt(missed / all));
  }
  settled.rank = session.factor_rank(0);
  return settled;
}

TEST(RankOfPowerSgd, FollowsTheError) {
  const Model model = one_parameter({60, 50}, parse_codec("powersgd:rank=1-8,error=0.3,without-feedback"));
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = with(Algorithm::two_shot);
    options.error_feedback = false;
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    // Five of equal strength: 4 would miss a fifth of the squares, an error of 0.45.
    const Settled five = settle(*session, gradients, {1, 1, 1, 1, 1});
    EXPECT_EQ(five.rank, 8u);
    EXPECT_LT(five.error, 0.01);
    // One, and a little: 2 would be enough even at 0.27, and 1 misses 0.29.
    const Settled little = settle(*session, gradients, {1, 0.3, 0.01, 0.01}, 100);
    EXPECT_EQ(little.rank, 2u);
    EXPECT_LT(little.error, 0.02);
    const Settled one = settle(*session, gradients, {1, 0.05}, 60);
    EXPECT_EQ(one.rank, 1u);
    EXPECT_NEAR(one.error, 0.05, 0.01);
    // Down at most to the least, and up at most to the most, where the target cannot be met.
    EXPECT_EQ(settle(*session, gradients, std::vector<double>(20, 1.0)).rank, 8u);
  });
}

/// A use that is rolled back teaches nothing.
TEST(RankOfPowerSgd, ARolledBackStepTeachesNothing) {
  const Model model = one_parameter({60, 50}, parse_codec("powersgd:rank=1-8,error=0.3"));
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
    Gradients gradients(model);
    fill_spectrum(gradients, {1});
    session->all_reduce(gradients.pointers());
    session->commit();
    const auto before = session->save();
    for (int step = 0; step < 30; ++step) {
      fill_spectrum(gradients, {1, 1, 1, 1, 1, 1});
      session->all_reduce(gradients.pointers());
      session->rollback();
      EXPECT_EQ(session->factor_rank(0), 1u);
    }
    fill_spectrum(gradients, {1});
    session->all_reduce(gradients.pointers());
    EXPECT_EQ(session->factor_rank(0), 1u);
  });
}

/// The estimate that steers, against what is known: over many uses, the mean of the missed squares is right.
TEST(RankOfPowerSgd, TheEstimateIsUnbiased) {
  low_rank::PlannedMatrix plan{
      .shape = {60, 50}, .type = ElementType::f32, .settings = *parse_codec("powersgd:rank=2-4,error=0.3").low_rank()};
  low_rank::Matrix matrix(plan, 1);
  const Model model = one_parameter({60, 50}, Codec{});
  Gradients gradients(model);
  double missed = 0, captured = 0;
  constexpr std::uint32_t kUses = 400;
  for (std::uint32_t use = 0; use < kUses; ++use) {
    fill_spectrum(gradients, {3, 2, 1, 0.5, 0.5});
    matrix.begin(gradients.pointers()[0], {}, use);
    for (const low_rank::Side side : {low_rank::Side::left, low_rank::Side::right}) {
      const low_rank::SeededFactor fixed = matrix.fixed(side);
      low_rank::Orthogonalizer().orthogonalize(fixed.factor, length(other(side), plan.shape), matrix.rank(),
                                               fixed.seed);
      matrix.multiply(side);
      matrix.product(side);
    }
    const low_rank::Energies energies = matrix.energies(1);
    matrix.finish(low_rank::Side::right, 1, false);
    matrix.end_step(true);
    if (use < 20) continue;
    missed += energies.missed / (kUses - 20);
    captured += energies.captured / (kUses - 20);
    EXPECT_NEAR(energies.last, 4, 0.2) << "what rank 1 would not have";
  }
  EXPECT_NEAR(captured, 13, 0.05);
  EXPECT_NEAR(missed, 1.5, 0.2);
}

TEST(RankOfPowerSgd, SpecsAreReadAndRefused) {
  for (const char* spec : {"powersgd:rank=1,rank=4@1000,rank=8@5000,start=100", "powersgd:rank=1-16,error=0.25",
                           "powersgd:rank=3-20,error=0.5,start=10+int8:block=256"})
    EXPECT_EQ(parse_codec(spec).spec(), spec);
  const auto refused = [](const char* spec, const char* why) {
    EXPECT_ERROR(parse_codec(spec), Errc::invalid_argument, why);
  };
  refused("powersgd:rank=1,rank=2@10,rank=3@10", "rank 3 from step 10 on, but the one before is from step 10 on");
  refused("powersgd:rank=1,rank=65@10", "rank must be from 1 to 64, got 65");
  refused("powersgd:rank=1,rank=x@10", "\"rank=x@10\" is not a number");
  refused("powersgd:rank=1-64,error=0.1", "rank must be from 1 to 63, got 64");
  refused("powersgd:rank=1-4", "both a range of ranks and the error");
  refused("powersgd:error=0.1", "both a range of ranks and the error");
  refused("powersgd:rank=4-2,error=0.1", "ranks from 4 to 2");
  refused("powersgd:rank=1-4,error=1", "error must be from 0 to below 1, got 1");
  refused("powersgd:rank=1-4,error=0.1,one-factor", "needs both factors");
  refused("powersgd:rank=1-4,rank=2@5,error=0.1", "no steps to change at");
}

TEST(RankOfPowerSgd, IsNeverMoreThanIsWorthIt) {
  const Model model = one_parameter({30, 20}, parse_codec("powersgd:rank=1,rank=20@1"));
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
    Gradients gradients(model);
    for (int step = 0; step < 2; ++step) {
      reduce(*session, gradients, 1);
      session->commit();
    }
    const auto& plan = session->description();
    EXPECT_TRUE(contains(plan, "powersgd:rank=1,rank=20@1, of 30 x 20"));
  });
}

}  // namespace
}  // namespace tightwire::testing::session_rank
