// Columns of factors become orthonormal, whatever they are, with the same bits on every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/low_rank/orthogonalize.hpp>
#include <tightwire/testing/calls.hpp>

#include "support/low_rank_values.hpp"

namespace tightwire::testing::orthogonalize_test {
namespace {

using low_rank::Orthogonalizer;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// The largest element of Q^T Q - I, over the first min(rows, rank) columns.
double distance_from_orthonormal(const Values& factor, std::size_t rows, std::size_t rank) {
  double most = 0;
  for (std::size_t a = 0; a < std::min(rows, rank); ++a)
    for (std::size_t b = 0; b <= a; ++b) {
      double dot = a == b ? -1 : 0;
      for (std::size_t i = 0; i < rows; ++i)
        dot += static_cast<double>(factor[a * rows + i]) * static_cast<double>(factor[b * rows + i]);
      if (!(std::fabs(dot) <= most)) most = std::fabs(dot);
    }
  return most;
}

/// Orthonormal on every instruction set, with the same bits.
void expect_orthonormal(const Values& factor, std::size_t rows, std::size_t rank) {
  Values first;
  for (const host::Level level : levels()) {
    Values q = factor;
    Orthogonalizer(level).orthogonalize(q.data(), rows, rank, {7, 3, 11});
    if (first.empty()) first = q;
    ASSERT_TRUE(same_bits(q, first)) << host::to_string(level);
  }
  ASSERT_LT(distance_from_orthonormal(first, rows, rank), 1e-6);
  for (std::size_t i = rows * std::min(rows, rank); i < first.size(); ++i) ASSERT_EQ(first[i], 0.0f);
}

TEST(Orthogonalizer, AnyFactorBecomesOrthonormal) {
  for (const std::size_t rows : Sizes{1, 2, 3, 7, 16, 33, 64, 300, 1000})
    for (const std::size_t rank : Sizes{1, 2, 4, 5, 8, 32, 64}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, rank " + std::to_string(rank));
      const Values random = bell(rows * rank, 5);
      const auto changed = [&](auto&& change) {
        Values factor = random;
        for (std::size_t i = 0; i < factor.size(); ++i) factor[i] = change(i % rows, i / rows, factor[i]);
        expect_orthonormal(factor, rows, rank);
      };
      changed([](auto, auto, float x) { return x; });
      changed([](auto, auto, float) { return 0.0f; });
      changed([](auto, auto, float) { return 1.0f; });
      changed([](auto, auto, float x) { return 1e30f * x; });
      changed([](auto, auto, float x) { return 1e-30f * x; });
      changed([](auto, auto, float x) { return 1e-44f * x; });
      changed([](auto, auto, float) { return std::numeric_limits<float>::max(); });
      changed([](auto, auto k, float x) { return k % 2 == 0 ? 1e30f * x : 1e-30f * x; });
      changed([](auto i, auto k, float x) { return i == 0 && k % 3 == 1 ? kNan : x; });
      changed([](auto i, auto k, float x) { return i == 0 && k % 3 == 1 ? -kInfinity : x; });
      changed([](auto i, auto, float x) { return i == 0 ? kInfinity : x; });
      changed([](auto, auto, float) { return kNan; });
      // Of rank 3 but for rounding; and nearly the same columns.
      changed([&](auto i, auto k, float) {
        return random[i] * static_cast<float>(k % 3 + 1) + (k % 3 == 1 ? 1.0f : 0.0f);
      });
      changed([&](auto i, auto, float x) { return random[i] + 1e-4f * x; });
      changed([&](auto i, auto, float x) { return random[i] + 3e-6f * x; });
      if (HasFatalFailure()) return;
    }
}

/// The largest part of a column of `factor` that the columns of q up to its own do not span.
double most_outside(const Values& factor, const Values& q, std::size_t rows) {
  double most = 0;
  for (std::size_t k = 0; k < factor.size() / rows; ++k) {
    std::vector<double> rest(factor.begin() + static_cast<std::ptrdiff_t>(k * rows),
                             factor.begin() + static_cast<std::ptrdiff_t>((k + 1) * rows));
    for (std::size_t j = 0; j <= k; ++j) {
      double along = 0;
      for (std::size_t i = 0; i < rows; ++i) along += rest[i] * static_cast<double>(q[j * rows + i]);
      for (std::size_t i = 0; i < rows; ++i) rest[i] -= along * static_cast<double>(q[j * rows + i]);
    }
    for (const double x : rest) most = std::max(most, std::fabs(x));
  }
  return most;
}

TEST(Orthogonalizer, OrthogonalColumnsSpanWhatWasSpanned) {
  constexpr std::size_t kRows = 500;
  for (const std::size_t rank : Sizes{3, 6, 33})
    for (const float apart : {1.0f, 1e-4f}) {  // the latter takes Cholesky QR two rounds
      Values factor = bell(kRows * rank, 8);
      for (std::size_t i = kRows; i < factor.size(); ++i) factor[i] = factor[i % kRows] + apart * factor[i];
      Values q = factor;
      Orthogonalizer().orthogonalize(q.data(), kRows, rank, {});
      EXPECT_LT(most_outside(factor, q, kRows), 1e-5) << "rank " << rank << ", " << apart << " apart";
    }
}

TEST(Orthogonalizer, AColumnOfWhichLessThanAMillionthIsLeftIsReplaced) {
  constexpr std::size_t kRows = 400;
  for (const std::size_t rank : Sizes{3, 4, 5, 20})
    for (const auto& [apart, kept] : {std::pair(3e-6f, true), {3e-7f, false}}) {
      const Values random = bell(kRows * rank, 8);
      Values factor = random, own(random.end() - kRows, random.end());
      // The last column is the first, but for a little of its own.
      float* const last = factor.data() + (rank - 1) * kRows;
      for (std::size_t i = 0; i < kRows; ++i) last[i] = random[i] + apart * own[i];
      Orthogonalizer().orthogonalize(factor.data(), kRows, rank, {});
      Values reference = random;
      Orthogonalizer().orthogonalize(reference.data(), kRows, rank, {});
      double along = 0;
      for (std::size_t i = 0; i < kRows; ++i)
        along += static_cast<double>(last[i]) * static_cast<double>(reference[(rank - 1) * kRows + i]);
      EXPECT_EQ(along > 0.9, kept) << "rank " << rank << ", " << apart << " apart: " << along;
      EXPECT_LT(distance_from_orthonormal(factor, kRows, rank), 1e-6);
    }
}

TEST(Orthogonalizer, ReplacedColumnsDependOnTheSeedAlone) {
  const auto replaced = [](const low_rank::OrthogonalizeSeed& seed) {
    Values zero(100);
    Orthogonalizer().orthogonalize(zero.data(), 50, 2, seed);
    return zero;
  };
  EXPECT_TRUE(same_bits(replaced({1, 2, 3}), replaced({1, 2, 3})));
  EXPECT_NE(replaced({1, 2, 3}), replaced({2, 2, 3}));
  EXPECT_NE(replaced({1, 2, 3}), replaced({1, 3, 3}));
  EXPECT_NE(replaced({1, 2, 3}), replaced({1, 2, 4}));
}

TEST(Orthogonalizer, FactorsOfOneShapeTogetherHaveTheBitsOfEachByItself) {
  constexpr std::size_t kCount = 70;
  ASSERT_GT(Orthogonalizer::together(64), 8u);
  for (const auto& [rows, rank] :
       {std::pair<std::size_t, std::size_t>{1, 2}, {16, 1}, {50, 4}, {64, 3}, {300, 6}, {3000, 4}}) {
    const std::size_t elements = rows * rank;
    Values factors = bell(kCount * elements, 5);
    for (std::size_t f = 0; f < kCount; ++f) {
      float* const last = factors.data() + (f + 1) * elements - rows;
      if (f % 5 == 1) std::fill_n(last, rows, 0.0f);
      if (f % 5 == 2) std::copy_n(last - (rank - 1) * rows, rows, last);
      if (f % 5 == 3) last[0] = f % 2 == 0 ? kNan : kInfinity;
    }
    Values alone = factors;
    std::vector<low_rank::SeededFactor> seeded(kCount);
    for (std::size_t f = 0; f < kCount; ++f) {
      const low_rank::OrthogonalizeSeed seed{7, static_cast<std::uint32_t>(f), 11};
      Orthogonalizer().orthogonalize(alone.data() + f * elements, rows, rank, seed);
      seeded[f] = {nullptr, seed};
    }
    for (const host::Level level : levels()) {
      Values together = factors;
      for (std::size_t f = 0; f < kCount; ++f) seeded[f].factor = together.data() + f * elements;
      Orthogonalizer(level).orthogonalize(seeded, rows, rank);
      EXPECT_TRUE(same_bits(together, alone)) << rows << " x " << rank << ", " << host::to_string(level);
    }
  }
}

}  // namespace
}  // namespace tightwire::testing::orthogonalize_test
