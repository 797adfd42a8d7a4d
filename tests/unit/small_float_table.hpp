#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <tightwire/codec/small_float.hpp>

namespace tightwire::testing {

/// The values of a small float by its definition, and the nearest of them by looking at all.
struct SmallFloatTable {
  std::vector<double> all;  ///< by magnitude code
  std::size_t finite;       ///< codes below this one are finite

  /// Of several equally near, the even code; of what is larger than all, the largest.
  std::size_t nearest(double x) const {
    const double magnitude = std::min(x, all[finite - 1]);
    std::size_t best = 0;
    for (std::size_t code = 1; code < finite; ++code) {
      const double better = std::abs(all[best] - magnitude) - std::abs(all[code] - magnitude);
      if (better > 0 || (better == 0 && code % 2 == 0)) best = code;
    }
    return best;
  }
};

inline SmallFloatTable small_float_table(int exponent_bits, int fraction_bits, std::size_t finite, bool infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  SmallFloatTable table{{}, finite};
  for (std::size_t code = 0; code < std::size_t{1} << (exponent_bits + fraction_bits); ++code) {
    const int exponent = static_cast<int>(code >> fraction_bits);
    const int fraction = static_cast<int>(code) & ((1 << fraction_bits) - 1);
    const double significand = (exponent == 0 ? 0.0 : 1.0) + std::ldexp(fraction, -fraction_bits);
    const double value = std::ldexp(significand, (exponent == 0 ? 1 : exponent) - bias);
    table.all.push_back(code < finite               ? value
                        : infinity && fraction == 0 ? std::numeric_limits<double>::infinity()
                                                    : std::numeric_limits<double>::quiet_NaN());
  }
  return table;
}

/// OCP 8-bit Floating Point Specification 1.0, OCP Microscaling Formats 1.0; powers have no fraction and no specials.
template <class Format>
SmallFloatTable table_of() {
  if constexpr (std::is_same_v<Format, detail::E4M3>)
    return small_float_table(4, 3, 0x7f, false);
  else if constexpr (std::is_same_v<Format, detail::E5M2>)
    return small_float_table(5, 2, 0x7c, true);
  else if constexpr (std::is_same_v<Format, detail::E2M1>)
    return small_float_table(2, 1, 8, false);
  else
    return small_float_table(Format::bits - 1, 0, std::size_t{1} << (Format::bits - 1), false);
}

}  // namespace tightwire::testing
