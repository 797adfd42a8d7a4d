#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tightwire::testing {

/// A 16-bit binary floating point format by its definition (IEEE 754-2019, 3.4), computed in double precision with none
/// of the bit arithmetic of element.hpp.
struct FloatFormat {
  int exponent_bits;
  int fraction_bits;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int smallest_exponent() const { return 1 - bias(); }

  int exponent_of(std::uint16_t code) const { return (code >> fraction_bits) & ((1 << exponent_bits) - 1); }
  int fraction_of(std::uint16_t code) const { return code & ((1 << fraction_bits) - 1); }
  bool is_nan(std::uint16_t code) const {
    return exponent_of(code) == (1 << exponent_bits) - 1 && fraction_of(code) != 0;
  }
  double value(std::uint16_t code) const {
    const int exponent = exponent_of(code);
    const double sign = (code & 0x8000u) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
      return fraction_of(code) != 0 ? std::numeric_limits<double>::quiet_NaN()
                                    : sign * std::numeric_limits<double>::infinity();
    const double significand = std::ldexp(fraction_of(code), -fraction_bits) + (exponent == 0 ? 0.0 : 1.0);
    return sign * std::ldexp(significand, exponent == 0 ? smallest_exponent() : exponent - bias());
  }
  /// The first power of two that the format lacks.
  double overflow() const { return std::ldexp(1.0, bias() + 1); }

  /// The code of a number rounded to nearest, ties to even. x is no NaN.
  std::uint16_t round(double x) const {
    const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000u : 0u);
    const auto infinity = static_cast<std::uint16_t>(sign | (((1 << exponent_bits) - 1) << fraction_bits));
    const double magnitude = std::abs(x);
    if (std::isinf(x)) return infinity;
    if (magnitude == 0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), smallest_exponent());
    const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));  // of the last place
    if (std::ldexp(units, exponent - fraction_bits) >= overflow()) return infinity;
    // Codes of one sign are numbered in the order of their values, one unit apart; a carry into the exponent is right.
    const int first = exponent == smallest_exponent() ? 0 : (exponent - smallest_exponent()) << fraction_bits;
    return static_cast<std::uint16_t>(sign | (first + static_cast<int>(units)));
  }
};

inline constexpr FloatFormat kBfloat16{8, 7};
inline constexpr FloatFormat kBinary16{5, 10};

}  // namespace tightwire::testing
