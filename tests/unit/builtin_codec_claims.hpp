#pragma once
#include <algorithm>
#include <cmath>

#include <tightwire/codec/list.hpp>
#include <tightwire/testing/reference_codec.hpp>

// What the headers of the built-in codecs promise, written once more from their documentation.

namespace tightwire::testing {

/// Half a unit in the last place of a binary float.
inline double half_unit(double x, int fraction_bits, int smallest_exponent) {
  const int exponent = x == 0 ? smallest_exponent : std::max(std::ilogb(x), smallest_exponent);
  return std::ldexp(1.0, exponent - fraction_bits - 1);
}

template <>
struct Claims<Dense> : DefaultClaims {
  static double error_bound(double, double) { return 0.0; }
  static constexpr bool odd_symmetric = true;
};
template <>
struct Claims<Bf16> : DefaultClaims {
  static double error_bound(double x, double) { return std::max(half_unit(x, 7, -126), std::abs(x) - saturation); }
  static constexpr bool odd_symmetric = true;
  static constexpr float saturation = 0x1.fep127f;
};
template <>
struct Claims<Fp16> : DefaultClaims {
  static double error_bound(double x, double) { return std::max(half_unit(x, 10, -14), std::abs(x) - saturation); }
  static constexpr bool scale_invariant = false;
  static constexpr bool odd_symmetric = true;
  static constexpr float saturation = 65504.0f;
};

/// The step on the wire: to eight significant bits, and a normal number.
inline double largest_step(double step) { return std::max(std::abs(step) * (1 + 0x1p-8), 0x1p-126); }
inline constexpr double kArithmetic = 1 + 1e-4;  // t = x * (1 / step) is rounded twice, with t up to 127

template <int Bits>
struct Claims<SymmetricInt<Bits>> : DefaultClaims {
  static double error_bound(double, double largest) {
    return 0.5 * largest_step(largest / ((1 << (Bits - 1)) - 1)) * kArithmetic;
  }
  static constexpr bool odd_symmetric = true;
};
template <int Bits>
struct Claims<SignedAbsMaxInt<Bits>> : DefaultClaims {
  static double error_bound(double x, double largest) {
    const double top = 1 << (Bits - 1);
    const double step = largest_step(largest / top);
    const bool opposite =
        (x < 0) != (largest < 0) && std::abs(x) > (top - 0.6 - top * 0x1p-8) * std::abs(largest) / top;
    // All the steps, up to 2^-8 larger, down to one less.
    return (opposite ? 1 + top * 0x1p-8 : 0.5) * step * kArithmetic;
  }
};
template <int Bits>
struct Claims<AffineInt<Bits>> : DefaultClaims {
  static double error_bound(double, double largest) {
    // All that is known here is that no element is more than the largest away from 0.
    const double step = 2 * std::abs(largest) / ((1 << Bits) - 1) * (1 + 0x1p-7);
    return 0.5 * std::max(step, 0x1p-119) * kArithmetic + 0x1p-23 * std::abs(largest);
  }
  static constexpr bool exact_zero = false;
  static constexpr bool idempotent = false;
  static constexpr bool scale_invariant = false;  // short of 2^-119
  static constexpr float largest = 0x1.fffffep124f;
};

/// Half a unit of the last place of a small float times its step, or half of its smallest one.
inline double small_float_bound(double x, double step, int fraction_bits, double unit) {
  return 0.5 * std::max(std::abs(x) * std::ldexp(1.0, -fraction_bits), step * unit) * kArithmetic;
}
template <class Format>
struct Claims<BlockFloat<Format>> : DefaultClaims {
  static double error_bound(double x, double largest) {
    const bool e4m3 = std::is_same_v<Format, detail::E4M3>, e2m1 = std::is_same_v<Format, detail::E2M1>;
    const bool powers = Format::bits < 8 && !e2m1;
    // nuq: the smallest of 2^(bits-1) - 1 powers of two is 2^(1 - bias), the largest 2^bias times 2 or so.
    const int bias = (1 << (Format::bits - 2)) - 1;
    const double unit = powers ? std::ldexp(1.0, 1 - bias) : e2m1 ? 0.5 : e4m3 ? 0x1p-9 : 0x1p-16;
    const double top = powers ? std::ldexp(1.0, bias + 1) : e2m1 ? 6 : e4m3 ? 448 : 57344;
    const double step = std::max(std::abs(largest) / top * (1 + 0x1p-8), 0x1p-126 / unit);
    return small_float_bound(x, step, powers ? 0 : e2m1 ? 1 : e4m3 ? 3 : 2, unit);
  }
  static constexpr bool idempotent = true;
  static constexpr bool scale_invariant = true;
  static constexpr bool odd_symmetric = true;
};
template <class Format>
struct Claims<Mx<Format>> : DefaultClaims {
  static double error_bound(double x, double largest) {
    const int fraction = Format::bits == 4 ? 1 : std::is_same_v<Format, detail::E4M3> ? 3 : 2;
    const int emax = Format::bits == 4 ? 2 : std::is_same_v<Format, detail::E4M3> ? 8 : 15;
    const double top = Format::bits == 4 ? 6 : std::is_same_v<Format, detail::E4M3> ? 448 : 57344;
    const double unit = Format::bits == 4 ? 0.5 : std::is_same_v<Format, detail::E4M3> ? 0x1p-9 : 0x1p-16;
    if (largest == 0) return 0;
    const double step = std::max(std::exp2(std::ilogb(largest) - emax), 0x1p-126 / unit);
    if (std::abs(x) > top * step) return std::abs(x) - top * step;  // saturates
    return small_float_bound(x, step, fraction, unit);
  }
  static constexpr bool odd_symmetric = true;
};

template <>
struct Claims<NvFp4> : DefaultClaims {
  static double error_bound(double x, double largest) {
    // The largest step is that of the largest element; parts whose factor comes out as 0 are below 6 * 2^-10 of the
    // smallest that a block can share.
    const double step = std::abs(largest) / 6 * (1 + 0x1p-7) * (1 + 0x1p-4);
    return std::max(small_float_bound(x, step, 1, 0.5), largest == 0 ? 0 : 0x1.8p-124);
  }
  static constexpr bool idempotent = false;  // where a factor is subnormal
  static constexpr bool odd_symmetric = true;
};

template <>
struct Claims<Sign> : DefaultClaims {
  static double error_bound(double, double largest) { return largest_step(largest); }  // the sign is that of x
  static constexpr bool keeps_extremes = false;
  static constexpr bool exact_zero = false;
};
template <bool Five>
struct Claims<TernaryCodec<Five>> : DefaultClaims {
  static double error_bound(double x, double) { return std::abs(x) * kArithmetic; }  // never worse than nothing
  static constexpr bool keeps_extremes = false;
  static constexpr bool idempotent = false;
  static constexpr bool odd_symmetric = true;
};
template <int Bits>
struct Claims<Qsgd<Bits>> : DefaultClaims {
  /// Half a step under a norm of up to 4096 elements; and a code is sent only where it is nearer than 0.
  static double error_bound(double x, double largest) {
    const double step = largest_step(64 * largest / ((1 << (Bits - 1)) - 1));
    return std::min(std::abs(x), 0.5 * step) * kArithmetic;
  }
  static constexpr bool keeps_extremes = false;
  static constexpr bool idempotent = false;
  static constexpr bool odd_symmetric = true;
};

template <int Bits, bool Unbiased>
struct Claims<Codebook<Bits, Unbiased>> : DefaultClaims {
  /// A step is a mean of |x| / level, each at most the upper boundary of the level by the level (2.2 or less) root mean
  /// squares, or what a level at the top stands for. EDEN's counts elements at a level of 0 in, by which it can be 1.6
  /// times as large. The largest level is 2.74.
  static double error_bound(double, double largest) { return std::max(9.6 * std::abs(largest), 0x1p-118); }
  static constexpr bool exact_zero = false;
  static constexpr bool idempotent = false;
  static constexpr bool keeps_extremes = false;
};

}  // namespace tightwire::testing
