#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include <tightwire/codec/dense.hpp>
#include <tightwire/detail/flush_to_zero.hpp>
#include <tightwire/element.hpp>

namespace tightwire::testing::element_exhaustive_test {
namespace {

/// fp32 bits -> 16-bit code in integer arithmetic: the significand as a whole number, shifted, and rounded by comparing
/// what fell off with one half. NaN gives 0xffff, which stands for all of them.
std::uint16_t reference(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const std::uint32_t sign = bits >> 31 << 15;
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  const int field = static_cast<int>(bits >> 23 & 0xffu);
  const std::uint32_t fraction = bits & 0x7fffffu;
  if (field == 255) return static_cast<std::uint16_t>(fraction != 0 ? 0xffffu : sign | infinity);

  // |x| = significand * 2^(exponent - 23)
  const std::uint64_t significand = fraction | (field == 0 ? 0u : 0x800000u);
  const int exponent = (field == 0 ? 1 : field) - 127;
  const int smallest = 2 - (1 << (exponent_bits - 1));
  // Units of the last place of the result are 2^(target - fraction_bits).
  const int target = exponent < smallest ? smallest : exponent;
  const int shift = 23 - fraction_bits + (target - exponent);
  if (shift > 40) return static_cast<std::uint16_t>(sign);
  const std::uint64_t kept = significand >> shift;
  const std::uint64_t dropped = significand - (kept << shift);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  const bool up = dropped > half || (dropped == half && (kept & 1u) != 0);
  const auto units = static_cast<std::uint32_t>(kept) + (up ? 1u : 0u);
  // `units` has the leading one of a normal number, which counts as one step of the exponent field.
  const std::uint32_t code = (static_cast<std::uint32_t>(target - smallest) << fraction_bits) + units;
  return static_cast<std::uint16_t>(sign | (code >= infinity ? infinity : code));
}

/// What a buffer of 16-bit elements makes of a float.
template <ElementType Type>
struct Store {
  static constexpr int exponent_bits = Type == ElementType::bf16 ? 8 : 5;
  static constexpr std::uint16_t infinity = Type == ElementType::bf16 ? 0x7f80 : 0x7c00;
  static std::uint16_t code(float x) { return detail::Element<Type>::store(x); }
  static bool right(std::uint32_t bits, std::uint16_t code) {
    const std::uint16_t expected = reference(bits, exponent_bits, 15 - exponent_bits);
    if (expected == 0xffffu) return (code & 0x7fffu) > infinity && code >> 15 == bits >> 31;
    return code == expected;
  }
};
/// What the codecs make of it: saturated, and one NaN.
template <ElementType Type>
struct Cast : Store<Type> {
  static std::uint16_t code(float x) { return static_cast<std::uint16_t>(DenseAs<Type>::code(x, {})); }
  static bool right(std::uint32_t bits, std::uint16_t code) {
    const std::uint16_t rounded = reference(bits, Store<Type>::exponent_bits, 15 - Store<Type>::exponent_bits);
    if (rounded == 0xffffu) return code == (Type == ElementType::bf16 ? 0x7fc0 : 0x7e00);
    const bool overflows = (rounded & 0x7fffu) == Store<Type>::infinity && (bits & 0x7fffffffu) != 0x7f800000u;
    return code == rounded - (overflows ? 1 : 0);
  }
};

struct Mismatches {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint32_t> example{0};
  void add(std::uint32_t bits) {
    if (count.fetch_add(1) == 0) example = bits;
  }
};

using Codes = std::array<std::uint16_t, 65536>;

/// The codes of 65,536 neighbouring fp32 patterns.
template <class Conversion>
[[gnu::noinline]] void encode(std::uint32_t upper_half, Codes& codes) {
  for (std::uint32_t lower_half = 0; lower_half < codes.size(); ++lower_half)
    codes[lower_half] = Conversion::code(detail::from_bits(upper_half << 16 | lower_half));
}

/// Both floating point modes against the reference, for the upper halves in [begin, end).
template <class Conversion>
void compare_range(std::uint32_t begin, std::uint32_t end, Mismatches& mismatches) {
  Codes plain{}, flushed{};
  for (std::uint32_t upper_half = begin; upper_half < end; ++upper_half) {
    encode<Conversion>(upper_half, plain);
    {
      const detail::FlushToZero mode;
      encode<Conversion>(upper_half, flushed);
    }
    for (std::uint32_t lower_half = 0; lower_half < plain.size(); ++lower_half) {
      const std::uint32_t bits = upper_half << 16 | lower_half;
      if (plain[lower_half] != flushed[lower_half] || !Conversion::right(bits, plain[lower_half])) mismatches.add(bits);
    }
  }
}

/// All 2^32 values of fp32, on two threads.
template <class Conversion>
::testing::AssertionResult compare_all() {
  Mismatches mismatches;
  std::thread other([&] { compare_range<Conversion>(0, 0x8000u, mismatches); });
  compare_range<Conversion>(0x8000u, 0x10000u, mismatches);
  other.join();
  if (mismatches.count == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << mismatches.count << " mismatches, for example fp32 bits 0x" << std::hex
                                       << mismatches.example;
}

TEST(ElementExhaustive, EveryFloatToBfloat16) { EXPECT_TRUE(compare_all<Store<ElementType::bf16>>()); }
TEST(ElementExhaustive, EveryFloatToBinary16) { EXPECT_TRUE(compare_all<Store<ElementType::f16>>()); }
TEST(ElementExhaustive, EveryFloatThroughTheBf16Codec) { EXPECT_TRUE(compare_all<Cast<ElementType::bf16>>()); }
TEST(ElementExhaustive, EveryFloatThroughTheFp16Codec) { EXPECT_TRUE(compare_all<Cast<ElementType::f16>>()); }

}  // namespace
}  // namespace tightwire::testing::element_exhaustive_test
