#pragma once
#include <array>
#include <string_view>

#include <tightwire/codec/integer.hpp>

namespace tightwire {

namespace detail {

/// What a block between two ends needs in registers. Codes lie from -half to half - 1.
struct AffineScale {
  float step;
  float inverse;
  float low;
  float high;  ///< greatest code, counted from 0; 0 in a block without a step
  float half;
};

/// low + step * number of steps. Of up to 16 bits, and steps of 8, the product is exact, so that only the addition
/// rounds.
struct AffineArithmetic {
  using Scale = AffineScale;
  static constexpr bool exact_products = true;

  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s) {
    return centered_code(greatest(least((x - s.low) * s.inverse, s.high), 0.0f), s);
  }
  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s, const auto& noise) {
    return centered_code(greatest(least((x - s.low) * s.inverse, s.high), 0.0f) + noise, s);
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) {
    return (to_float(code) + s.half) * s.step + s.low;
  }

 private:
  /// The nearest whole number of steps, less half of all.
  TIGHTWIRE_HD static constexpr auto centered_code(const auto& steps, const Scale& s) {
    return nearest(((steps + kNearestShift) - kNearestShift) - s.half);
  }
};

}  // namespace detail

/// Integers of 1 to 8 bits from the least to the greatest element of a block: two fp32 per block, the least element and
/// the step, rounded up to the 8 significant bits of a bf16. Error at most half a step, step = (max - min) /
/// (2^bits - 1) up to 2^-7 more.
/// For elements that are far from 0 or of one sign; 0 itself is not exact. Elements of 2^125 and above count as not
/// finite.
template <int Bits>
requires(Bits >= 1 && Bits <= 8) struct AffineInt {
  static constexpr std::string_view name =
      detail::pick_name<Bits>({"int1-affine", "int2-affine", "int3-affine", "int4-affine", "int5-affine", "int6-affine",
                               "int7-affine", "int8-affine"});
  static constexpr int bits = Bits;
  static constexpr float steps = static_cast<float>((1 << Bits) - 1);
  static constexpr float accuracy = Bits == 1 ? 1.75f : (Bits >= 6 ? 1.9f : 1.6f) / steps;
  int block = detail::default_block(Bits);
  Rounding round = Rounding::automatic;

  using Stat = Extent;
  struct Param {
    float low;
    float step;
  };
  using Arithmetic = detail::AffineArithmetic;
  using Scale = Arithmetic::Scale;

  TIGHTWIRE_HD static constexpr Param param(Stat stat) {
    constexpr float kNaN = __builtin_nanf("");
    if (!stat.finite()) return {kNaN, kNaN};
    // Ends and steps are multiples of 2^-126, so that no decoded value is subnormal.
    const float low = detail::normal_multiple(stat.low());
    const float high = detail::normal_multiple(stat.high());
    const float extent = high - low;
    if (!(extent > 0.0f)) return {low, 0.0f};
    const float step = detail::from_bf16(detail::step_bits<true>(extent, steps));
    return {low, step < 0x1p-119f ? 0x1p-119f : step};
  }
  /// A step from the wire may be anything: it is cut to the bits that make products exact, and what is not finite
  /// becomes the one NaN, so that every decoder gives the same.
  TIGHTWIRE_HD static constexpr Scale scale(Param param) {
    const std::uint32_t step_bits = detail::to_bits(param.step);
    const bool finite = (step_bits & detail::kMagnitudeMask) < detail::kInfinityBits &&
                        (detail::to_bits(param.low) & detail::kMagnitudeMask) < detail::kInfinityBits;
    const float step = detail::from_bits(finite ? step_bits & 0xffff0000u : 0x7fc00000u);
    const float low = finite ? param.low : detail::from_bits(0x7fc00000u);
    const bool usable = step >= 0x1p-126f && step <= 0x1p126f;
    return {step, usable ? 1.0f / step : 0.0f, low, usable ? steps : 0.0f, static_cast<float>(1 << (Bits - 1))};
  }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<AffineInt<4>>);

}  // namespace tightwire
