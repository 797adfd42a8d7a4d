// The largest elements, against sorting them: for any data, threshold of the last time, type and instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/sparse/selection.hpp>
#include <tightwire/testing/calls.hpp>

#include "support/model.hpp"

namespace tightwire::testing::sparse_selection_test {
namespace {

using sparse::magnitude_key;
using sparse::Selection;
using sparse::Source;
using Values = std::vector<float>;

/// Places of the k largest of v, ascending: by definition.
std::vector<std::uint32_t> by_definition(const Values& v, std::size_t k) {
  std::vector<std::uint32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return magnitude_key(v[a]) > magnitude_key(v[b]); });
  order.resize(std::min(k, v.size()));
  std::erase_if(order, [&](std::uint32_t i) { return v[i] == 0.0f; });
  std::sort(order.begin(), order.end());
  return order;
}

/// A parameter with its residual.
struct Row {
  Values x, before, after;
  explicit Row(std::size_t count) : x(count), before(count), after(count, -1.0f) {}
  Source source(std::uint32_t first = 0) {
    return {x.data(), ElementType::f32, x.size(), first, {before.data(), after.data()}, {}};
  }
};

void expect_chosen(const Selection& selection, const Values& v, std::size_t k) {
  const auto expected = by_definition(v, k);
  ASSERT_EQ(std::vector<std::uint32_t>(selection.places().begin(), selection.places().end()), expected);
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_TRUE(same_bits(selection.values().subspan(i, 1), {{v[expected[i]]}}));
}

/// What is left of sums when the chosen ones have gone.
Values rest_of(Values v, const Selection& selection) {
  for (const std::uint32_t place : selection.places()) v[place] = 0;
  return v;
}

const std::vector<host::Level> kLevels = {host::Level::baseline, host::Level::avx2, host::Level::avx512};

TEST(SparseSelection, IsThatOfSortingWhateverCameBefore) {
  for (const host::Level level : kLevels) {
    if (level > host::supported_level()) continue;
    Selection selection(level);
    FastRandom random(7);
    for (int round = 0; round < 60; ++round) {
      const std::size_t count = 1 + random.below(round % 3 == 0 ? 100 : 60'000);
      const std::size_t k = 1 + random.below(count + 3);  // more than there are, too
      Row row(count);
      // Magnitudes jump between rounds, so that thresholds are far too high and far too low.
      const float scale = std::ldexp(1.0f, static_cast<int>(random.below(60)) - 30);
      for (std::size_t i = 0; i < count; ++i) {
        row.x[i] = scale * random.bell();
        row.before[i] = random.below(2) == 0 ? 0.0f : scale * random.bell();
        if (round % 4 == 1) row.x[i] = std::round(row.x[i] / scale), row.before[i] = 0;   // many ties and zeros
        if (round % 8 == 5) row.x[i] = 3, row.before[i] = 0;                              // nothing but ties
        if (round % 8 == 6) row.x[i] = scale * static_cast<float>(i), row.before[i] = 0;  // the largest come last
        if (round % 8 == 7) row.x[i] = scale * static_cast<float>(count - i), row.before[i] = 0;
      }
      Values v(count);
      for (std::size_t i = 0; i < count; ++i) v[i] = row.x[i] + row.before[i];
      const Source source = row.source();
      for (int again = 0; again < 2; ++again) {
        SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(k) + " of " + std::to_string(count));
        selection.choose({&source, 1}, k, {});
        expect_chosen(selection, v, k);
        ASSERT_TRUE(same_bits(row.after, rest_of(v, selection)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Thousands of elements over many steps with the same k, as in training; every step is exact.
void follow_drift(host::Level level) {
  Selection selection(level);
  FastRandom random(3);
  Row row(200'000);
  float scale = 1;
  for (int step = 0; step < 12; ++step, scale *= 1.1f) {
    for (std::size_t i = 0; i < row.x.size(); ++i) row.x[i] = scale * random.bell();
    Values v(row.x.size());
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = row.x[i] + row.before[i];
    const Source source = row.source();
    selection.choose({&source, 1}, 2000, {});
    // The residual makes sums grow fast at first, and ever more slowly: so much is not foreseen.
    EXPECT_TRUE(step < 5 || selection.passes() == 1) << "step " << step;
    expect_chosen(selection, v, 2000);
    ASSERT_TRUE(same_bits(row.after, rest_of(v, selection)));
    std::swap(row.before, row.after);
  }
}

TEST(SparseSelection, FollowsDataThatDriftsInOnePass) {
  for (const host::Level level : kLevels)
    if (level <= host::supported_level()) follow_drift(level);
}

TEST(SparseSelection, AStepUnlikeAllOthersCostsFewPassesAndTheNextOneAgainOne) {
  // Some steps have more than k elements that are not finite, or are far larger or smaller than all others, or zero.
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e35f,
                          1e-35f, 0x1p-140f, 0.0f}) {
    Selection selection;
    FastRandom random(14);
    Values x(30'000), rest(x.size()), nothing(x.size());
    int passes = 0;
    for (int step = 0; step < 24; ++step) {
      const bool is_odd = step % 6 == 4;
      for (float& value : x) value = random.bell() * (is_odd ? odd : 1.0f);
      const Source source = {x.data(), ElementType::f32, x.size(), 0, {nothing.data(), rest.data(), true}, {}};
      selection.choose({&source, 1}, 300, {});
      expect_chosen(selection, x, 300);
      // How much smaller or larger a step is, is not known before; that the next is like the last one is.
      EXPECT_LE(selection.passes(), is_odd || (step % 6 == 5 && odd == 1e35f) ? 3 : 1) << odd << ", step " << step;
      passes += selection.passes();
    }
    EXPECT_LE(passes, 24 + 8) << odd;
  }
  // However they are spread, there is an end to it.
  Selection selection;
  Values x(20'000);
  const Source source = {x.data(), ElementType::f32, x.size(), 0, {}, {}};
  for (int step = 0; step < 6; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = step % 2 == 0 ? 1e38f : std::ldexp(1.0f, 126 - static_cast<int>(i / 10));
    selection.choose({&source, 1}, 800, {});
    expect_chosen(selection, x, 800);
    EXPECT_LE(selection.passes(), 4);
  }
}

TEST(SparseSelection, LeavesWhatWasNotChosenHoweverWrongTheExpectation) {
  // In place and apart, past the caches too. Steps are alike, then the threshold is too low, then too high, by a little
  // and by much; some are not finite.
  for (const host::Level level : kLevels)
    for (const bool in_place : {false, true})
      for (const std::size_t k : {40ul, 900ul, 6000ul}) {
        if (level > host::supported_level()) continue;
        Selection selection(level);
        FastRandom random(11);
        constexpr std::size_t kCount = 60'000;
        Values x(kCount), memory(2 * kCount + 16);
        const std::size_t shift = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) / sizeof(float);
        float* const before = memory.data() + shift;
        float* const after = in_place ? before : before + kCount;
        for (int step = 0; step < 30; ++step) {
          const float scale = step < 12       ? 1.0f
                              : step % 4 == 0 ? 1.03f
                              : step % 4 == 1 ? 0.96f
                              : step % 4 == 2 ? 3.0f
                                              : 0.3f;
          Values v(kCount);
          for (std::size_t i = 0; i < kCount; ++i) {
            x[i] = scale * random.bell();
            if (step == 20 && i % 9000 == 5) x[i] = -std::numeric_limits<float>::infinity();
            v[i] = x[i] + before[i];
          }
          const Source source = {x.data(), ElementType::f32, kCount, 0, {before, after, !in_place}, {}};
          selection.choose({&source, 1}, k, {});
          expect_chosen(selection, v, k);
          ASSERT_TRUE(same_bits({after, kCount}, rest_of(v, selection))) << "step " << step;
          if (!in_place) std::copy_n(after, kCount, before);
        }
      }
}

TEST(SparseSelection, LeavesEqualMagnitudesBehindTheFirst) {
  for (const host::Level level : kLevels) {
    if (level > host::supported_level()) continue;
    Selection selection(level);
    FastRandom random(12);
    Row row(20'000);
    for (int step = 0; step < 8; ++step) {
      for (float& x : row.x) x = std::round(4 * random.bell());
      Values v(row.x.size());
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = row.x[i] + row.before[i];
      const Source source = row.source();
      selection.choose({&source, 1}, 500, {});
      expect_chosen(selection, v, 500);
      ASSERT_TRUE(same_bits(row.after, rest_of(v, selection)));
    }
  }
}

TEST(SparseSelection, ChoosesFromSeveralParametersTogether) {
  Selection selection;
  FastRandom random(5);
  std::vector<Row> rows;
  for (const std::size_t count : {1ul, 4000ul, 17ul, 30'000ul}) rows.emplace_back(count);
  Values all;
  std::vector<Source> sources;
  for (Row& row : rows) {
    for (float& x : row.x) x = random.bell();
    sources.push_back(row.source(static_cast<std::uint32_t>(all.size())));
    all.insert(all.end(), row.x.begin(), row.x.end());
  }
  for (const std::size_t k : {1ul, 10ul, 340ul, 20'000ul}) {
    selection.choose(sources, k, {});
    expect_chosen(selection, all, k);
  }
}

TEST(SparseSelection, Buffers16BitsWideAndUnaligned) {
  FastRandom random(6);
  for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16})
    for (const std::size_t shift : {0ul, 1ul, 3ul}) {
      Values x(5000);
      for (float& value : x) value = random.bell();
      const std::vector<std::byte> buffer = to_buffer(type, x);
      x = from_buffer(type, buffer);
      std::vector<std::byte> moved(buffer.size() + shift);
      std::copy(buffer.begin(), buffer.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
      const Source source = {moved.data() + shift, type, x.size(), 0, {}, {}};
      Selection selection;
      for (int again = 0; again < 2; ++again) {
        selection.choose({&source, 1}, 123, {});
        expect_chosen(selection, x, 123);
      }
    }
}

TEST(SparseSelection, MomentumIsThatOfTheDefinition) {
  for (const bool nesterov : {false, true})
    for (const host::Level level : kLevels) {
      if (level > host::supported_level()) continue;
      const MomentumCorrection momentum{.factor = 0.9f, .nesterov = nesterov, .optimizer_momentum = 0.0};
      Selection selection(level);
      FastRandom random(8);
      Row row(3001);
      Values b(3001), expected_b(3001), v(3001);
      for (int step = 0; step < 4; ++step) {
        for (std::size_t i = 0; i < v.size(); ++i) {
          row.x[i] = random.bell();
          const float product = 0.9f * expected_b[i];
          expected_b[i] = product + row.x[i];
          const float ahead = 0.9f * expected_b[i];
          v[i] = (nesterov ? row.x[i] + ahead : expected_b[i]) + row.before[i];
        }
        Source source = row.source();
        source.momentum = {b.data(), b.data()};
        selection.choose({&source, 1}, 30, momentum);
        expect_chosen(selection, v, 30);
        ASSERT_TRUE(same_bits(b, expected_b));
        ASSERT_TRUE(same_bits(row.after, rest_of(v, selection)));
        row.before = row.after;
      }
    }
}

TEST(SparseSelection, SampledKeepsItsBounds) {
  FastRandom random(9);
  Row row(300'000);
  for (std::uint32_t use = 0; use < 20; ++use) {
    for (float& x : row.x) x = random.bell();
    const Source source = row.source();
    Selection selection, other;
    const sparse::SampleSeed seed{1, use, 2};
    selection.choose_sampled({&source, 1}, 3000, {}, seed);
    ASSERT_TRUE(same_bits(row.after, rest_of(row.x, selection)));
    EXPECT_GE(selection.places().size(), 2400u);
    EXPECT_LE(selection.places().size(), 3900u);
    expect_chosen(selection, row.x, selection.places().size());  // whatever their number, they are the largest
    // What came before has no influence.
    other.choose({&source, 1}, 3000, {});
    other.choose_sampled({&source, 1}, 3000, {}, seed);
    EXPECT_TRUE(std::ranges::equal(selection.places(), other.places()));
  }
  // The sample is one of the whole parameter, even where that is hardly longer.
  std::size_t exact = 0;
  for (std::uint32_t use = 0; use < 20; ++use) {
    Row ascending(2047);
    for (std::size_t i = 0; i < 2047; ++i) ascending.x[i] = static_cast<float>(i + 1);
    const Source source = ascending.source();
    Selection selection;
    selection.choose_sampled({&source, 1}, 200, {}, {1, use, 2});
    EXPECT_EQ(selection.passes(), 1);
    exact += selection.places().size() == 200 ? 1 : 0;
  }
  EXPECT_LT(exact, 20u) << "no sample was good enough";
  // Where a sample cannot tell, the choice is exact.
  std::fill(row.x.begin(), row.x.end(), 1.0f);
  const Source source = row.source();
  Selection selection;
  selection.choose_sampled({&source, 1}, 3000, {}, {1, 1, 1});
  expect_chosen(selection, row.x, 3000);
  std::fill(row.x.begin(), row.x.end(), 0.0f);
  selection.choose_sampled({&source, 1}, 3000, {}, {1, 1, 1});
  EXPECT_TRUE(selection.places().empty());
}

TEST(SparseSelection, SampledAfterMomentumWithSomeThatAreNotFinite) {
  const MomentumCorrection momentum{.factor = 0.9f, .nesterov = true, .optimizer_momentum = 0.0};
  constexpr std::size_t kCount = 60'000;
  FastRandom random(15);
  Row row(kCount);
  Values b(kCount), v(kCount), ahead(kCount);
  bool sampled = false;
  for (std::uint32_t use = 0; use < 8; ++use) {
    for (std::size_t i = 0; i < kCount; ++i) {
      row.x[i] = random.bell();
      if (use == 5 && i % 20'000 == 3) row.x[i] = -std::numeric_limits<float>::quiet_NaN();
      if (use == 6 && i % 10 == 3) row.x[i] = std::numeric_limits<float>::infinity();  // ten times k
      host::ApplyMomentum::one(row.x[i], b[i], momentum.factor, momentum.nesterov, ahead[i]);
      v[i] = ahead[i] + row.before[i];
    }
    Source source = row.source();
    Values after(kCount);
    source.momentum = {b.data(), after.data()};
    Selection selection;
    selection.choose_sampled({&source, 1}, 600, momentum, {3, use, 2});
    const std::size_t count = selection.places().size();
    EXPECT_TRUE(count >= 480 && count <= 780) << count;
    sampled = sampled || count != 600;
    expect_chosen(selection, v, count);
    EXPECT_EQ(selection.forgotten(), use == 6 ? 6'000 - count : 0u);
    // What is not finite is for the caller to undo where it was chosen; what was not chosen has left no trace.
    for (std::size_t i = 0; i < kCount; ++i) {
      const bool chosen = std::binary_search(selection.places().begin(), selection.places().end(), i);
      if (std::isfinite(row.x[i])) {
        ASSERT_EQ(row.after[i], chosen ? 0.0f : v[i]);
      } else {
        ASSERT_EQ(row.after[i], chosen ? 0.0f : row.before[i]);
        ASSERT_TRUE(chosen || after[i] == b[i]);
        after[i] = b[i];
      }
    }
    row.before = row.after;
    b = after;
  }
  EXPECT_TRUE(sampled);
}

TEST(SparseSelection, SubnormalSums) {
  // Multiples of the smallest number there is, up to normal ones, none of which may be flushed to zero.
  for (const host::Level level : kLevels) {
    if (level > host::supported_level()) continue;
    for (const std::size_t k : {1ul, 400ul}) {
      Selection selection(level);
      FastRandom random(16);
      Row row(10'000);
      for (int step = 0; step < 6; ++step) {
        for (float& x : row.x) x = std::ldexp(1.0f, -149) * (static_cast<float>(random.below(4 << (4 * step))) - 2.0f);
        Values v(row.x.size());
        for (std::size_t i = 0; i < v.size(); ++i) v[i] = row.x[i] + row.before[i];
        const Source source = row.source();
        if (step % 2 == 0)
          selection.choose({&source, 1}, k, {});
        else
          selection.choose_sampled({&source, 1}, k, {}, {1, 2, 3});
        expect_chosen(selection, v, step % 2 == 0 ? k : selection.places().size());
        ASSERT_TRUE(same_bits(row.after, rest_of(v, selection)));
        row.before = row.after;
      }
    }
  }
}

TEST(SparseSelection, WhatIsNotFiniteComesFirstAndLeavesNoTrace) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const bool in_place : {false, true}) {
    Row row(100'000);
    FastRandom random(4);
    for (float& x : row.x) x = random.bell();
    for (float& x : row.before) x = 0.25f;
    std::vector<std::size_t> bad;
    for (std::size_t i = 0; i < 50; ++i) bad.push_back(i * 1999 + 7);
    for (const std::size_t i : bad) row.x[i] = i % 2 == 0 ? nan : -infinity;
    Selection selection;
    Source source = row.source();
    if (in_place) {
      row.after = row.before;
      source.residual = {row.after.data(), row.after.data()};
    }
    selection.choose({&source, 1}, 100, {});
    EXPECT_EQ(selection.forgotten(), 0u);
    for (const std::size_t i : bad)
      EXPECT_TRUE(std::binary_search(selection.places().begin(), selection.places().end(), i));
    if (in_place) row.after = row.before;
    selection.choose({&source, 1}, 20, {});
    EXPECT_EQ(selection.places().size(), 20u);
    EXPECT_EQ(selection.forgotten(), 30u);
    for (const std::size_t i : bad) {
      if (std::binary_search(selection.places().begin(), selection.places().end(), i)) continue;
      EXPECT_EQ(row.after[i], in_place ? 0.0f : 0.25f);
    }
  }
  // More of them than there is ever room for.
  Row all(200'000);
  std::fill(all.x.begin(), all.x.end(), nan);
  Selection selection;
  const Source source = all.source();
  selection.choose({&source, 1}, 3, {});
  EXPECT_EQ(selection.forgotten(), 200'000u - 3);
  EXPECT_EQ(std::count(all.after.begin(), all.after.end(), 0.0f), 200'000);
}

TEST(SparseSelection, Beyond16MillionElements) {
  // Indices that a float cannot hold.
  constexpr std::size_t kCount = (std::size_t{1} << 24) + 5;
  Values x(kCount);
  FastRandom random(2);
  for (std::size_t i = 0; i < kCount; i += 1000) x[i] = random.bell();
  for (std::size_t i = kCount - 4; i < kCount; ++i) x[i] = 100.0f + static_cast<float>(kCount - i);
  const Source source = {x.data(), ElementType::f32, kCount, 0, {}, {}};
  Selection selection;
  selection.choose({&source, 1}, 4, {});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(selection.places()[i], kCount - 4 + i);
}

}  // namespace
}  // namespace tightwire::testing::sparse_selection_test
