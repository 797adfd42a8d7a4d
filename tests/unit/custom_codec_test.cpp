#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include <tightwire/core_codecs.hpp>
#include <tightwire/testing/codec_conformance.hpp>

// A codec that the contract allows and that is like none of the built-in ones: 0 is nothing special to it, neither as
// an element nor as a code, and its parameters have less range than the elements. The loops may rely on no more than
// the contract says.

namespace {

using tightwire::BlockCodec;
using tightwire::ElementType;
namespace detail = tightwire::detail;

/// Least and greatest element of a block, both as integers in the order of the floats; NaNs lie beyond the infinities.
struct Range {
  struct Key {
    std::int32_t low, high;
  };
  Key bits{std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};

  static constexpr std::int32_t ordered(std::uint32_t b) {
    return static_cast<std::int32_t>(b >> 31 != 0 ? b ^ detail::kMagnitudeMask : b);
  }
  static constexpr float from_ordered(std::int32_t key) {
    const auto b = static_cast<std::uint32_t>(key);
    return detail::from_bits(key < 0 ? b ^ detail::kMagnitudeMask : b);
  }
  static constexpr Key key(float x) { return {ordered(detail::to_bits(x)), ordered(detail::to_bits(x))}; }
  constexpr void add(Key key) { bits = {std::min(bits.low, key.low), std::max(bits.high, key.high)}; }
  constexpr bool finite() const { return bits.low > ordered(0xc77fe000u) && bits.high < ordered(0x477fe000u); }
};

/// 4-bit integers from the least to the greatest element of a block, both within the range of fp16: a block that is not
/// becomes NaN and counts. Code 0 is the least element, whatever that is.
struct Affine4 {
  static constexpr std::string_view name = "affine4";
  static constexpr int bits = 4;
  static constexpr float accuracy = 0.11f;
  int block = 64;

  using Stat = Range;
  struct Param {
    std::uint16_t low, step;  // fp16
  };
  struct Scale {
    float low, step, inverse;
  };

  static constexpr Param param(Stat stat) {
    if (!stat.finite()) return {0x7e00, 0};
    const float low = Range::from_ordered(stat.bits.low);
    const std::uint16_t step = detail::to_f16((Range::from_ordered(stat.bits.high) - low) / 15.0f);
    return {detail::to_f16(low), std::max(step, std::uint16_t{0x0400})};
  }
  static constexpr Scale scale(Param param) {
    const bool usable = param.step >= 0x0400 && param.step < 0x7c00;
    const float step = detail::from_f16(param.step);
    return {detail::from_f16(param.low), step, usable ? 1.0f / step : 0.0f};
  }
  static constexpr int code(float x, Scale scale) {
    float t = (x - scale.low) * scale.inverse;
    t = t < 15.0f ? t : 15.0f;
    t = t > 0.0f ? t : 0.0f;
    return detail::nearest(t);
  }
  /// Codes arrive with their top bit extended.
  static constexpr float value(int code, Scale scale) { return scale.low + static_cast<float>(code & 15) * scale.step; }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<Affine4>);

}  // namespace

template <>
struct tightwire::testing::Claims<Affine4> : tightwire::testing::DefaultClaims {
  static constexpr bool exact_zero = false;
  static constexpr bool idempotent = false;
  static constexpr bool scale_invariant = false;
  static constexpr float largest = 60000.0f;
};
namespace tightwire::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Custom, CodecConformance, ::testing::Values(subject<Affine4>()), CodecName{});

}  // namespace
}  // namespace tightwire::testing
