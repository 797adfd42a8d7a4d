#pragma once
#include <cstdint>
#include <string_view>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

namespace detail {

/// A binary float of 4 or 8 bits: sign, exponent, `Fraction` bits; subnormals as in IEEE. `Largest` is the greatest
/// magnitude; codes above it are NaNs, except that `Infinity`, where there is one, is an infinity.
template <int ExponentBits, int Fraction, int Largest, int Infinity = 0>
struct SmallFloat {
  static constexpr int bits = 1 + ExponentBits + Fraction;
  static constexpr bool has_infinity = Infinity != 0;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr int magnitude_mask = (1 << (bits - 1)) - 1;
  static constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(128 - bias) << 23;
  static constexpr int shift = 23 - Fraction;
  /// 2^23 units of the last place of a subnormal: what is added to it is rounded to such units.
  static constexpr std::uint32_t align = static_cast<std::uint32_t>(127 + 1 - bias - Fraction + 23) << 23;
  static constexpr float unit = from_bits(static_cast<std::uint32_t>(127 + 1 - bias - Fraction) << 23);

  TIGHTWIRE_HD static constexpr auto decoded(const auto& code) {
    const auto magnitude = as_unsigned(code & magnitude_mask);
    const auto normal = (magnitude << shift) + (static_cast<std::uint32_t>(127 - bias) << 23);
    const auto order = as_int(magnitude);
    auto b = select(order < (1 << Fraction), to_bits(to_float(order) * unit), normal);
    if constexpr (Infinity != 0) b = select(order == Infinity, kInfinityBits, b);
    b = b | (as_unsigned(code) << (32 - bits) & kSignMask);
    // Without a sign: where it meets a step that is NaN, it depends on the compiler which of the two the product is.
    constexpr int kLastNumber = Infinity != 0 ? Infinity : Largest;
    if constexpr (kLastNumber < magnitude_mask) b = select(order > kLastNumber, 0x7fc00000u, b);
    return from_bits(b);
  }
  static constexpr float largest = decoded(Largest);

  /// Nearest, ties to even; what is larger than all becomes the largest. The sign is extended.
  TIGHTWIRE_HD static constexpr auto nearest_code(const auto& x) {
    const auto b = to_bits(x);
    const auto t = held(x);
    if constexpr (Fraction == 0) {  // which of two neighbours is even, no mantissa says
      const auto m = to_bits(t);
      const auto normal =
          (m - (static_cast<std::uint32_t>(127 - bias) << 23) + ((1u << 22) - 1) + (m >> 23 & 1u)) >> 23;
      const auto subnormal = to_bits(t + from_bits(align)) - align;
      const auto magnitude = as_int(select(as_int(m) < static_cast<int>(smallest_normal), subnormal, normal));
      return magnitude | (as_int(b) >> 31 & ~magnitude_mask);
    } else {
      // Up to the end of the first normal binade codes count units of the last place. In every binade they go on by
      // 2^Fraction, and units, twice as large, start again from 2^Fraction.
      const auto binade = binade_of(t);
      const auto units = as_int(to_bits(t + shift_in(binade))) - as_int(to_bits(shift_in(binade)));
      const auto magnitude = units + ((binade - static_cast<int>(smallest_normal)) >> shift);
      return magnitude | (as_int(b) >> 31 & ~magnitude_mask);
    }
  }
  /// What that decodes to.
  TIGHTWIRE_HD static constexpr auto nearest_value(const auto& x) {
    if constexpr (Fraction == 0) {
      return decoded(nearest_code(x));
    } else {
      const auto t = held(x);
      const auto shift_here = shift_in(binade_of(t));
      return from_bits(to_bits((t + shift_here) - shift_here) | (to_bits(x) & kSignMask));
    }
  }

  /// Up or down by chance, `noise` in (-1/2, 1/2) of the distance between neighbours.
  TIGHTWIRE_HD static constexpr auto stochastic_code(const auto& x, const auto& noise) {
    const auto b = to_bits(x);
    const auto t = held(x);
    const auto m = to_bits(t);
    const auto jitter = as_unsigned(nearest(noise * static_cast<float>(1 << shift)));
    const auto normal = (m - (static_cast<std::uint32_t>(127 - bias) << 23) + (1u << (shift - 1)) + jitter) >> shift;
    // Not below 0, where the units are finer.
    const auto subnormal = to_bits(greatest(t + noise * unit, 0.0f) + from_bits(align)) - align;
    const auto magnitude = as_int(select(as_int(m) < static_cast<int>(smallest_normal), subnormal, normal));
    return magnitude | (as_int(b) >> 31 & ~magnitude_mask);
  }

 private:
  /// The magnitude, no more than the largest.
  TIGHTWIRE_HD static constexpr auto held(const auto& x) {
    // As integers, which compilers know how to compare in one instruction.
    return from_bits(as_unsigned(least(as_int(to_bits(x) & kMagnitudeMask), static_cast<int>(to_bits(largest)))));
  }
  /// The power of two below, as bits; that of the smallest normal where floats are subnormal, as they are as far apart.
  TIGHTWIRE_HD static constexpr auto binade_of(const auto& t) {
    return greatest(as_int(to_bits(t) & kInfinityBits), static_cast<int>(smallest_normal));
  }
  /// 1.5 * 2^23 units of the last place: what it is added to is rounded to such units.
  TIGHTWIRE_HD static constexpr auto shift_in(const auto& binade) {
    return from_bits(as_unsigned(binade + (((23 - Fraction) << 23) | 0x400000)));
  }
};

// What codecs of a format are called, under a step and under a power of two, and what they promise under either.

/// OCP e4m3: no infinity, 448 the largest.
struct E4M3 : SmallFloat<4, 3, 0x7e> {
  static constexpr std::string_view name = "fp8-e4m3", mx_name = "mxfp8-e4m3";
  static constexpr float accuracy = 0.031f;
};
/// OCP e5m2: 57344 the largest.
struct E5M2 : SmallFloat<5, 2, 0x7b, 0x7c> {
  static constexpr std::string_view name = "fp8-e5m2", mx_name = "mxfp8-e5m2";
  static constexpr float accuracy = 0.058f;
};
/// OCP e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
struct E2M1 : SmallFloat<2, 1, 0x07> {
  static constexpr std::string_view name = "fp4", mx_name = "mxfp4";
  static constexpr float accuracy = 0.14f;
};
/// 0, and 2^(Bits - 1) - 1 powers of two.
template <int Bits>
requires(Bits >= 3 && Bits <= 5) struct Powers : SmallFloat<Bits - 1, 0, (1 << (Bits - 1)) - 1> {
  static constexpr std::string_view names[3] = {"nuq3", "nuq4", "nuq5"};
  static constexpr std::string_view name = names[Bits - 3];
  static constexpr float accuracy = Bits == 3 ? 0.35f : 0.22f;
};

/// A small float times a step. Their products are exact: at most 4 significant bits, and 8 of a bf16.
template <class Format>
struct SmallFloatArithmetic {
  struct Scale {
    float step;
    float inverse;  ///< 0 in a block without a step
  };
  static constexpr bool exact_products = true;

  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s) { return Format::nearest_code(x * s.inverse); }
  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s, const auto& noise) {
    return Format::stochastic_code(x * s.inverse, noise);
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) {
    return one_nan(Format::decoded(code) * s.step);
  }
  /// An infinity under a step of 0, which no encoder sends, is a NaN of either sign by the processor.
  TIGHTWIRE_HD static constexpr auto one_nan(const auto& x) {
    if constexpr (Format::has_infinity) {
      const auto b = to_bits(x);
      return from_bits(select(as_int(b & kMagnitudeMask) > static_cast<int>(kInfinityBits), (b & 0u) | 0x7fc00000u, b));
    } else {
      return x;
    }
  }
};

}  // namespace detail

/// Small floats, one bf16 step per block that makes the largest element the largest float.
///   fp8-e4m3, fp8-e5m2   relative error at most 2^-4 or 2^-3 down to the subnormals. At equal bytes `int8` is better
///                        unless blocks hold outliers a hundred times their other elements.
///   fp4                  e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6
///   nuq3 to nuq5         0 and powers of two: the exponential levels of NUQSGD (Ramezani-Kebrya et al. 2021)
template <class Format>
struct BlockFloat {
  static constexpr int bits = Format::bits;
  static constexpr std::string_view name = Format::name;
  static constexpr float accuracy = Format::accuracy;
  int block = bits == 8 ? 128 : 64;
  Rounding round = Rounding::automatic;

  using Stat = AbsMax;
  using Param = std::uint16_t;
  using Arithmetic = detail::SmallFloatArithmetic<Format>;
  using Scale = typename Arithmetic::Scale;

  /// No decoded value is subnormal: steps are large enough for the smallest float to be a normal number.
  static constexpr std::uint32_t smallest_step = detail::to_bits(0x1p-126f / Format::unit) >> 16;
  TIGHTWIRE_HD static constexpr Param param(Stat stat) {
    return held(detail::step_bits(stat.value(), Format::largest));
  }
  /// For stochastic rounding: no element is larger than the largest float.
  TIGHTWIRE_HD static constexpr Param unbiased_param(Stat stat) {
    return held(detail::step_bits<true>(stat.value(), Format::largest));
  }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) {
    const detail::StepScale s = detail::step_scale(param, {0, 0});
    return {s.step, s.inverse};
  }
  static constexpr bool lossless(ElementType) { return false; }

 private:
  TIGHTWIRE_HD static constexpr Param held(std::uint32_t step) {
    return static_cast<Param>(step != 0 && step < smallest_step ? smallest_step : step);
  }
};
using Fp8E4M3 = BlockFloat<detail::E4M3>;
using Fp8E5M2 = BlockFloat<detail::E5M2>;
using Fp4 = BlockFloat<detail::E2M1>;
template <int Bits>
using Nuq = BlockFloat<detail::Powers<Bits>>;

/// OCP Microscaling (MX 1.0): small floats under a power of two per block of 32, one exponent byte. The scale is
/// 2^(exponent of the largest element - exponent of the largest float), so that elements up to twice the largest float
/// saturate. Sums are formed in fp32 and encoded once, under a scale of their own.
template <class Format>
struct Mx {
  static constexpr std::string_view name = Format::mx_name;
  static constexpr int bits = Format::bits;
  static constexpr float accuracy = Format::accuracy;
  int block = 32;
  Rounding round = Rounding::automatic;

  using Stat = AbsMax;
  using Param = std::uint8_t;  ///< E8M0: the exponent plus 127; 255 is NaN
  using Arithmetic = detail::SmallFloatArithmetic<Format>;
  using Scale = typename Arithmetic::Scale;

  static constexpr int largest_exponent = static_cast<int>(detail::to_bits(Format::largest) >> 23);
  /// No decoded value is subnormal.
  static constexpr int smallest = 1 + 127 - static_cast<int>(detail::to_bits(Format::unit) >> 23);
  TIGHTWIRE_HD static constexpr Param param(Stat stat) { return from_exponent(stat, stat.bits >> 23); }
  /// For stochastic rounding: no element saturates.
  TIGHTWIRE_HD static constexpr Param unbiased_param(Stat stat) {
    constexpr int kLargestFraction = static_cast<int>(detail::to_bits(Format::largest) & 0x7fffffu);
    return from_exponent(stat, (stat.bits >> 23) + ((stat.bits & 0x7fffff) > kLargestFraction ? 1 : 0));
  }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) {
    const std::uint32_t e = param;
    const float step = detail::from_bits(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23);
    const bool usable = e - 1 < 253;
    return {step, usable ? detail::from_bits((254 - e) << 23) : 0.0f};
  }
  static constexpr bool lossless(ElementType) { return false; }

 private:
  TIGHTWIRE_HD static constexpr Param from_exponent(Stat stat, int of_largest) {
    // 254: that of the largest fp32; under a larger scale the largest float would overflow.
    const int exponent = detail::min(of_largest, 254) + 127 - largest_exponent;
    const int held = exponent < smallest ? smallest : exponent;
    const int scale = stat.bits == 0 ? 0 : held;
    return static_cast<Param>(stat.finite() ? scale : 255);
  }
};
using MxFp8E4M3 = Mx<detail::E4M3>;
using MxFp8E5M2 = Mx<detail::E5M2>;
using MxFp4 = Mx<detail::E2M1>;
static_assert(BlockCodec<Fp8E4M3> && BlockCodec<MxFp4>);

}  // namespace tightwire
