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
  static double error_bound(double x, double) { return half_unit(x, 7, -126); }
  static constexpr bool odd_symmetric = true;
  static constexpr float largest = 0x1.fep127f;
};
template <>
struct Claims<Fp16> : DefaultClaims {
  static double error_bound(double x, double) { return half_unit(x, 10, -14); }
  static constexpr bool scale_invariant = false;
  static constexpr bool odd_symmetric = true;
  static constexpr float largest = 65504.0f;
};

/// The step on the wire: to eight significant bits, and a normal number.
inline double largest_step(double step) { return std::max(std::abs(step) * (1 + 0x1p-8), 0x1p-126); }
inline constexpr double kArithmetic = 1 + 1e-4;  // t = x * (1 / step) is rounded twice, with t up to 127

template <>
struct Claims<Int8> : DefaultClaims {
  static double error_bound(double, double largest) { return 0.5 * largest_step(largest / 127) * kArithmetic; }
  static constexpr bool odd_symmetric = true;
};
template <>
struct Claims<Int4> : DefaultClaims {
  static double error_bound(double x, double largest) {
    const double step = largest_step(largest / 8);
    const bool opposite = (x < 0) != (largest < 0) && std::abs(x) > 7.4 * std::abs(largest) / 8;
    // 8 (1 + 2^-8) steps down to 7.
    return (opposite ? 1 + 0x1p-5 : 0.5) * step * kArithmetic;
  }
};

}  // namespace tightwire::testing
