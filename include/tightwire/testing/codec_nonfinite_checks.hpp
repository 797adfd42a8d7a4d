#pragma once
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include <tightwire/testing/calls.hpp>

namespace tightwire::testing {

/// What happened to one block only: all others as in the clean run, bit for bit.
inline ::testing::AssertionResult same_but_for_block(std::span<const float> actual, std::span<const float> clean,
                                                     std::size_t block, std::size_t affected) {
  for (std::size_t begin = 0; begin < clean.size(); begin += block) {
    if (begin / block == affected) continue;
    const std::size_t length = std::min(block, clean.size() - begin);
    const auto same = same_bits(actual.subspan(begin, length), clean.subspan(begin, length));
    if (!same) return ::testing::AssertionFailure() << "block " << begin / block << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

/// Ten blocks, the last one short, and the places at which a loop might treat an element differently.
struct NonFiniteCase {
  std::size_t block, count;
  std::vector<std::size_t> places;
  explicit NonFiniteCase(const Subject& subject)
      : block(static_cast<std::size_t>(subject.block)),
        count(9 * block + block / 2 + 1),
        places{0, 3 * block, 3 * block + 5, 3 * block + block / 2, 4 * block - 1, 9 * block, count - 2, count - 1} {}
};
inline const std::vector<float>& nonfinite_values() {
  static const std::vector<float> values = {detail::from_bits(0x7fc00000u), detail::from_bits(0xffc12345u),
                                            detail::from_bits(0x7f800001u), INFINITY, -INFINITY};
  return values;
}

/// A NaN or an infinity in the input: seen at its place when decoded, counted, without effect on any other block, and
/// the residual is as before wherever no finite value arrived.
inline void check_nonfinite_encode(const Subject& subject) {
  const NonFiniteCase blocks(subject);
  const auto reference = subject.reference();
  const std::vector<float> before = Random(2).gaussian(blocks.count, 0.01);
  for (const ElementType type : kElementTypes) {
    const std::vector<float> clean = from_buffer(type, to_buffer(type, Random(1).gaussian(blocks.count)));
    for (const host::Level level : levels()) {
      const auto coder = subject.coder(level);
      const EncodeOutput clean_run = encode(*coder, type, clean, before);
      ASSERT_EQ(clean_run.nonfinite, 0u);
      const std::vector<float> clean_decoded = decode(*coder, clean_run.wire, blocks.count);
      for (const std::size_t place : blocks.places) {
        for (const float value : nonfinite_values()) {
          SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(level)) + ": " +
                       std::to_string(value) + " at " + std::to_string(place));
          std::vector<float> x = clean;
          x[place] = value;
          const EncodeOutput run = encode(*coder, type, x, before);
          EXPECT_EQ(run.nonfinite, 1u);
          const std::vector<float> decoded = decode(*coder, run.wire, blocks.count);
          ASSERT_FALSE(is_finite(decoded[place])) << "a finite number where there was none";
          ASSERT_TRUE(std::isnan(decoded[place]) || decoded[place] == value) << "decodes to " << decoded[place];
          ASSERT_TRUE(same_but_for_block(decoded, clean_decoded, blocks.block, place / blocks.block));
          ASSERT_TRUE(same_but_for_block(run.residual, clean_run.residual, blocks.block, place / blocks.block));
          const std::vector<float> total = sum(x, before);
          ASSERT_TRUE(same_bits(run.residual, residual_after(total, decoded, before)));
          ASSERT_TRUE(same_bytes(run.wire, reference->encode(total).wire));
        }
      }
    }
  }
}

/// One element in a hundred: as many are counted as went in, and none comes out finite.
inline void check_scattered_nonfinite(const Subject& subject) {
  const auto coder = subject.coder();
  Random random(3);
  std::vector<float> x = random.gaussian(100'000);
  std::uint64_t put_in = 0;
  for (float& element : x) {
    if (random.below(100) != 0) continue;
    element = nonfinite_values()[random.below(nonfinite_values().size())];
    ++put_in;
  }
  const EncodeOutput run = encode(*coder, ElementType::f32, x);
  EXPECT_EQ(run.nonfinite, put_in);
  const std::vector<float> decoded = decode(*coder, run.wire, x.size());
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(is_finite(x[i]) || !is_finite(decoded[i])) << "element " << i;
}

/// The largest finite values stay finite; what the codec cannot hold is reported.
inline void check_largest(const Subject& subject) {
  const auto coder = subject.coder();
  const std::size_t count = 2 * static_cast<std::size_t>(subject.block);
  for (const float sign : {1.0f, -1.0f}) {
    for (const std::size_t both : {std::size_t{0}, std::size_t{1}}) {
      std::vector<float> x = Random(4).gaussian(count);
      x[5] = sign * subject.largest;
      x[6] = both == 1 ? -sign * subject.largest : x[6];
      const EncodeOutput run = encode(*coder, ElementType::f32, x, std::vector<float>(count, 0.0f));
      EXPECT_EQ(run.nonfinite, 0u);
      const std::vector<float> decoded = decode(*coder, run.wire, count);
      EXPECT_TRUE(within_bound(subject, subject.block, x, decoded));
      for (const float residual : run.residual) ASSERT_TRUE(is_finite(residual));
    }
  }
  if (subject.largest == FLT_MAX) return;
  std::vector<float> x = Random(4).gaussian(count);
  x[5] = FLT_MAX;
  const EncodeOutput run = encode(*coder, ElementType::f32, x);
  EXPECT_GE(run.nonfinite, 1u) << "a value out of range was lost in silence";
  EXPECT_FALSE(is_finite(decode(*coder, run.wire, count)[5]));
}

/// An outlier that a narrower type could not hold (1e30 in a bf16 buffer): finite or reported, and nothing else
/// changes.
inline void check_bf16_outlier(const Subject& subject) {
  const auto coder = subject.coder();
  const auto block = static_cast<std::size_t>(subject.block);
  const std::size_t count = 3 * block;
  const auto sum_with = [&](float first) {
    CombineInput input;
    input.type = ElementType::bf16;
    input.contributions.assign(2, std::vector<float>(count, 1.0f));
    input.contributions[0][0] = first;
    input.own = 1;
    std::vector<std::vector<std::byte>> wires;
    std::uint64_t reported = 0;
    for (const std::vector<float>& x : input.contributions) {
      EncodeOutput encoded = encode(*coder, input.type, x);
      reported += encoded.nonfinite;
      wires.push_back(std::move(encoded.wire));
    }
    return std::pair(combine(*coder, input, wires).out, reported);
  };
  const float outlier = rounded(ElementType::bf16, 1e30f);
  const auto [clean, none] = sum_with(1.0f);
  const auto [out, reported] = sum_with(outlier);
  EXPECT_EQ(none, 0u);
  EXPECT_TRUE(same_but_for_block(out, clean, block, 0));
  if (outlier > subject.largest) {
    EXPECT_GE(reported, 1u);
    return;
  }
  EXPECT_EQ(reported, 0u);
  for (std::size_t i = 0; i < block; ++i) ASSERT_TRUE(is_finite(out[i])) << "element " << i;
  const double bound = subject.error_bound(1e30, 1e30);
  EXPECT_NEAR(out[0], outlier, std::isfinite(bound) ? 2.1 * bound + 0x1p-8 * 1e30 : 0.3e30);
}

/// The same sum without encoding it: the same elements are not finite, NaNs are all the one, and they are counted.
inline void expect_same_unencoded(const Coder& coder, const ReferenceCodec& reference, CombineInput input,
                                  const std::vector<std::vector<std::byte>>& wires,
                                  const std::vector<std::vector<float>>& decoded) {
  input.encoded = false;
  input.owner.reset();
  const CombineOutput expected = reference_combine(reference, input, decoded);
  std::uint64_t nonfinite = 0;
  for (const float x : expected.out) nonfinite += is_finite(x) ? 0 : 1;
  EXPECT_EQ(expected.nonfinite.result, nonfinite);
  expect_combined(combine(coder, input, wires), expected);
}

/// Infinities and NaNs of either sign meet in one sum: its bits depend neither on our place among the ranks nor on the
/// instruction set.
inline void check_meeting_nonfinite(const Subject& subject) {
  const auto reference = subject.reference();
  const std::size_t count = 2 * static_cast<std::size_t>(subject.block) + 3;
  const float nan = detail::from_bits(0x7fc00000u), other_nan = detail::from_bits(0xffc12345u);
  const std::vector<std::vector<float>> values = {
      {INFINITY, -INFINITY, nan}, {-INFINITY, INFINITY, other_nan}, {other_nan, nan, 1.0f}, {nan, other_nan, INFINITY}};
  for (const ElementType type : kElementTypes) {
    for (const std::vector<float>& meeting : values) {
      std::optional<CombineOutput> first, first_unencoded;
      for (const host::Level level : levels()) {
        for (std::size_t own = 0; own < 3; ++own) {
          const auto coder = subject.coder(level);
          CombineInput input;
          input.type = type;
          input.own = own;
          std::vector<std::vector<std::byte>> wires;
          for (std::size_t rank = 0; rank < 3; ++rank) {
            input.contributions.emplace_back(count, 1.0f);
            input.contributions[rank][3] = meeting[rank];
            wires.push_back(encode(*coder, type, input.contributions[rank]).wire);
          }
          const CombineOutput sum = combine(*coder, input, wires);
          input.encoded = false;
          const CombineOutput unencoded = combine(*coder, input, wires);
          if (!first) first = sum, first_unencoded = unencoded;
          EXPECT_FALSE(is_finite(sum.out[3]));
          EXPECT_TRUE(same_bytes(sum.wire, first->wire)) << "own " << own << " " << to_string(level);
          EXPECT_TRUE(same_bits(sum.out, first->out)) << "own " << own << " " << to_string(level);
          EXPECT_TRUE(same_bits(unencoded.out, first_unencoded->out)) << "own " << own << " " << to_string(level);
        }
      }
    }
  }
}

/// Non-finite contributions of our own and of peers, and a sum beyond the range of the buffer: counted, confined to
/// their block, and both residuals as they were.
inline void check_nonfinite_combine(const Subject& subject) {
  const NonFiniteCase blocks(subject);
  const auto reference = subject.reference();
  constexpr std::size_t kRanks = 3;
  std::size_t turn = 0;
  for (const ElementType type : kElementTypes) {
    CombineInput input;
    input.type = type;
    input.own = 1;
    input.divisor = 3;
    input.sender = Random(5).gaussian(blocks.count, 0.01);
    input.owner = Random(6).gaussian(blocks.count, 0.01);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> x = Random(10 + rank).gaussian(blocks.count);
      input.contributions.push_back(from_buffer(type, to_buffer(type, x)));
    }
    const auto run = [&](host::Level level) {
      const auto coder = subject.coder(level);
      std::vector<std::vector<std::byte>> wires;
      std::vector<std::vector<float>> decoded;
      for (const std::vector<float>& x : input.contributions) {
        wires.push_back(encode(*coder, type, x).wire);
        decoded.push_back(reference->decode(wires.back(), x.size()));
      }
      expect_same_unencoded(*coder, *reference, input, wires, decoded);
      const CombineOutput actual = combine(*coder, input, wires);
      expect_combined(actual, reference_combine(*reference, input, decoded));
      EXPECT_TRUE(same_bits(decode(*coder, type, actual.wire, blocks.count), actual.out)) << "not what all decode";
      return actual;
    };
    const CombineOutput clean = run(host::supported_level());
    ASSERT_EQ(clean.nonfinite.contribution + clean.nonfinite.result, 0u);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      for (const std::size_t place : blocks.places) {
        const float value = nonfinite_values()[turn % nonfinite_values().size()];
        const host::Level level = levels()[turn++ % levels().size()];
        SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(level)) + ": " + std::to_string(value) +
                     " from rank " + std::to_string(rank) + " at " + std::to_string(place));
        const float good = std::exchange(input.contributions[rank][place], value);
        const CombineOutput actual = run(level);
        input.contributions[rank][place] = good;
        EXPECT_EQ(actual.nonfinite.contribution, rank == input.own ? 1u : 0u);
        EXPECT_GE(actual.nonfinite.result, 1u);
        ASSERT_FALSE(is_finite(actual.out[place]));
        const std::size_t affected = place / blocks.block;
        ASSERT_TRUE(same_but_for_block(actual.out, clean.out, blocks.block, affected));
        ASSERT_TRUE(same_but_for_block(actual.owner, clean.owner, blocks.block, affected));
        ASSERT_TRUE(same_but_for_block(actual.sender, clean.sender, blocks.block, affected));
        ASSERT_EQ(actual.owner[place], (*input.owner)[place]);
        ASSERT_TRUE(rank != input.own || actual.sender[place] == (*input.sender)[place]);
      }
    }
  }
}

/// Finite contributions whose sum is not, in fp32 or in the type of the buffer.
inline void check_sum_overflow(const Subject& subject) {
  const auto reference = subject.reference();
  const std::size_t count = 3 * static_cast<std::size_t>(subject.block) + 1;
  for (const ElementType type : kElementTypes) {
    const float large = type == ElementType::f16 ? 40000.0f : 0.75f * std::min(subject.largest, 0x1p127f);
    // Contributions that saturate in the range of the buffer add up to no overflow.
    if (is_finite(rounded(type, 3 * std::min(large, subject.saturation)))) continue;
    CombineInput input;
    input.type = type;
    input.own = 2;
    input.contributions = contributions(3, count, type);
    input.owner = Random(7).gaussian(count, 0.01);
    input.sender = std::vector<float>(count, 0.0f);
    for (std::vector<float>& x : input.contributions) x[2] = rounded(type, large);
    for (const host::Level level : levels()) {
      const auto coder = subject.coder(level);
      std::vector<std::vector<std::byte>> wires;
      std::vector<std::vector<float>> decoded;
      for (const std::vector<float>& x : input.contributions) {
        wires.push_back(encode(*coder, type, x).wire);
        decoded.push_back(reference->decode(wires.back(), count));
      }
      SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(level)));
      expect_same_unencoded(*coder, *reference, input, wires, decoded);
      const CombineOutput actual = combine(*coder, input, wires);
      ASSERT_NO_FATAL_FAILURE(expect_combined(actual, reference_combine(*reference, input, decoded)));
      ASSERT_TRUE(same_bits(decode(*coder, type, actual.wire, count), actual.out));
      EXPECT_EQ(actual.nonfinite.contribution, 0u);
      EXPECT_FALSE(is_finite(actual.out[2]));
      EXPECT_GE(actual.nonfinite.result, 1u);
      EXPECT_EQ(actual.owner[2], (*input.owner)[2]);
    }
  }
}

}  // namespace tightwire::testing
