// How much a Session with TopK sends: which elements and how many, in how many bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/one_parameter.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/sparse_course.hpp"

namespace tightwire::testing::session_sparse_bytes {
namespace {

using namespace sparse_course;

TEST(SessionSparseBytes, ParametersOfABucketAreChosenFromTogether) {
  // As if they were one; the first is a hundred times as large, and by itself would send no more than a quarter.
  constexpr int kRanks = 3, kSteps = 3;
  constexpr std::size_t kFirst = 1000, kCount = 4000;
  const auto gradients = [&](int step) {
    Rows rows = gradients_of(kRanks, kCount, step);
    for (auto& row : rows)
      for (std::size_t i = 0; i < kFirst; ++i) row[i] *= 100;
    return rows;
  };
  const SessionOptions options = with(Algorithm::one_shot);
  const Course one = run(one_parameter({kCount}, TopK{.ratio = 0.02}), options, kRanks, kSteps, gradients);
  const TopK together{.ratio = 0.02, .per_bucket = true};
  const Model model = {{"a", {kFirst}, ElementType::f32, together},
                       {"b", {kCount - kFirst}, ElementType::f32, together}};
  run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, options);
    Gradients buffer(model);
    for (int step = 0; step < kSteps; ++step) {
      const Rows all = gradients(step);
      buffer.fill([&](std::size_t p, std::size_t i) { return all[me][p * kFirst + i]; });
      session->all_reduce(buffer.pointers());
      session->commit();
      std::vector<float> result = buffer.values(0);
      for (const float x : buffer.values(1)) result.push_back(x);
      EXPECT_EQ(result, one.results[me][static_cast<std::size_t>(step)]) << "step " << step;
    }
  });
}

std::size_t sent_elements(const std::vector<float>& result) {
  return result.size() - static_cast<std::size_t>(std::count(result.begin(), result.end(), 0.0f));
}

TEST(SessionSparseBytes, SampledSendsTheLargestWithinItsBounds) {
  constexpr std::size_t kCount = 50'000, kChosen = 2500;
  const auto gradients = [](int step) { return gradients_of(1, kCount, step); };
  const Course got = run(one_parameter({kCount}, TopK{.ratio = 0.05, .sampled = true}), {}, 1, 6, gradients);
  int inexact = 0;
  for (const std::vector<float>& result : got.results[0]) {
    EXPECT_GE(sent_elements(result), kChosen * 8 / 10);
    EXPECT_LE(sent_elements(result), kChosen * 13 / 10);
    inexact += sent_elements(result) != kChosen ? 1 : 0;
  }
  EXPECT_GT(inexact, 0);  // otherwise nothing was sampled
  float least = std::numeric_limits<float>::infinity(), largest_kept = 0;
  for (const float x : got.results[0].back()) least = x == 0.0f ? least : std::min(least, std::abs(x));
  for (const float x : got.residuals[0]) largest_kept = std::max(largest_kept, std::abs(x));
  EXPECT_GE(least, largest_kept);
}

TEST(SessionSparseBytes, WarmUpIsThatOfDeepGradientCompression) {
  constexpr std::size_t kCount = 100'000;
  const Course got = run(one_parameter({kCount}, TopK{.ratio = 0.001, .warm_up_steps = 8}), {}, 1, 10,
                         [](int step) { return gradients_of(1, kCount, step); });
  const double kSparsity[] = {0.75, 0.9375, 0.984, 0.996, 0.999};  // of the paper, section 3.3
  for (std::size_t step = 0; step < 10; ++step) {
    const double sent = static_cast<double>(sent_elements(got.results[0][step]));
    EXPECT_NEAR(1 - sent / kCount, kSparsity[step / 2], 0.0015) << "step " << step;
  }
}

TEST(SessionSparseBytes, IndicesBeyond16Million) {
  // Neighbours that an index held as a float would confuse.
  constexpr std::size_t kCount = (std::size_t{1} << 24) + 101, kLarge = 20;
  const Model model = one_parameter({kCount}, TopK{.ratio = 20.0 / kCount});
  for (const Algorithm algorithm : kAlgorithms)
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const float mine = transport->rank() == 0 ? 1.0f : 3.0f;
      SessionOptions options = with(algorithm);
      options.rollback = false;
      const auto session = sealed_session(transport, model, options);
      Gradients buffer(model);
      buffer.fill([&](std::size_t, std::size_t i) {
        return i < kCount - kLarge ? 0.0f : mine * static_cast<float>(kCount - i);
      });
      session->all_reduce(buffer.pointers());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kCount; ++i)
        wrong += buffer.get(0, i) != (i < kCount - kLarge ? 0.0f : 2 * static_cast<float>(kCount - i)) ? 1 : 0;
      EXPECT_EQ(wrong, 0u) << to_string(algorithm);
    });
}

TEST(SessionSparseBytes, BytesAreThoseOfTheFormat) {
  // Every rank chooses every tenth element: gaps of 9, blocks of 64 four bits wide.
  constexpr std::size_t kCount = 64'000, kChosen = 6400;
  const auto gradients = [](int) {
    Rows rows(4, std::vector<float>(kCount, 0.001f));
    for (auto& row : rows)
      for (std::size_t i = 0; i < kCount; i += 10) row[i] = 1.0f;
    return rows;
  };
  const auto bytes = [](std::size_t entries) {
    return 8 + (entries + 63) / 64 + entries * 4 / 8 + entries * 4;  // head, widths, gaps, values
  };
  const Course two = run(one_parameter({kCount}, TopK{.ratio = 0.1}), with(Algorithm::two_shot), 4, 1, gradients);
  for (const Statistics& total : two.totals)  // three contributions, and the result three times; header twice each
    EXPECT_EQ(total.sent_bytes, 6 * (2 * sizeof(FrameHeader) + bytes(kChosen / 4)));
  const Course one = run(one_parameter({kCount}, TopK{.ratio = 0.1}), with(Algorithm::one_shot), 4, 1, gradients);
  for (const Statistics& total : one.totals)
    EXPECT_EQ(total.sent_bytes, 3 * (2 * sizeof(FrameHeader) + bytes(kChosen)));

  // A byte for a value, two for the step of each 256 of them, and padding to 16.
  const Course int8 =
      run(one_parameter({kCount}, TopK{.ratio = 0.1, .values = Int8{}}), with(Algorithm::two_shot), 4, 1, gradients);
  for (const Statistics& total : int8.totals)
    EXPECT_EQ(total.sent_bytes, 6 * (2 * sizeof(FrameHeader) + bytes(kChosen / 4) - 3 * kChosen / 4 + 16));
}

TEST(SessionSparseBytes, ASumThatFillsInIsSentWhole) {
  // Every rank sends another fourth of the elements; their union is all, and goes without indices.
  constexpr std::size_t kCount = 64'000, kOwned = kCount / 4, kSent = kOwned / 4;
  const auto gradients = [](int) {
    Rows rows(4, std::vector<float>(kCount, 0.001f));
    for (std::size_t i = 0; i < kCount; ++i) rows[i % 4][i] = 1.0f;
    return rows;
  };
  const Course got =
      run(one_parameter({kCount}, TopK{.ratio = 0.25, .reselect = false}), with(Algorithm::two_shot), 4, 1, gradients);
  const std::size_t contribution = 8 + (kSent + 63) / 64 + kSent * 2 / 8 + kSent * 4, result = 8 + kOwned * 4;
  for (const Statistics& total : got.totals)
    EXPECT_EQ(total.sent_bytes, 3 * (2 * sizeof(FrameHeader) + contribution) + 3 * (2 * sizeof(FrameHeader) + result));
  for (const Rows& results : got.results) EXPECT_EQ(results, Rows{std::vector<float>(kCount, 0.25f)});
}

TEST(SessionSparseBytes, TrafficDoesNotGrowWithTheNumberOfRanks) {
  const auto sent = [](int ranks, const TopK& top_k) {
    const auto gradients = [&](int step) { return gradients_of(static_cast<std::size_t>(ranks), 100'000, step); };
    SessionOptions options;
    options.plan.one_shot_bytes = 0;
    const Course got = run(one_parameter({100'000}, top_k), options, ranks, 3, gradients);
    std::uint64_t most = 0;
    for (const Statistics& total : got.totals) most = std::max(most, total.sent_bytes);
    return static_cast<double>(most);
  };
  EXPECT_LT(sent(8, {.ratio = 0.01}), 2 * sent(2, {.ratio = 0.01}));
  // The union of what eight ranks chose independently is nearly eight times as much.
  EXPECT_GT(sent(8, {.ratio = 0.01, .reselect = false}), 5 * sent(2, {.ratio = 0.01}));
}

}  // namespace
}  // namespace tightwire::testing::session_sparse_bytes
