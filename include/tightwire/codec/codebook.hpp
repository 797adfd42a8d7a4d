#pragma once
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

namespace detail {

/// The magnitudes of the quantizer of `Bits` bits that has the least error on standard Gaussian data (Lloyd 1982, Max
/// 1960), in 64ths: whole numbers of up to 8 bits.
template <int Bits>
struct LloydMax {
  static constexpr int count = 1 << (Bits - 1);
  static constexpr int all[4][8] = {{51}, {29, 97}, {16, 48, 86, 138}, {8, 25, 42, 60, 80, 104, 132, 175}};
  // Constants and not functions, which device code could not call.
  template <int I>
  static constexpr std::uint32_t level = static_cast<std::uint32_t>(all[Bits - 1][I]);
  template <int I>
  static constexpr std::uint32_t value_bits = to_bits(static_cast<float>(level<I>) / 64.0f);
  /// Halfway between levels I - 1 and I.
  template <int I>
  static constexpr int boundary_bits = as_int(to_bits(static_cast<float>(level<I - 1> + level<I>) / 128.0f));
};

/// A level of a codebook times a step, with the sign of the element: sign in the top bit, index of the level below.
/// Levels have 8 significant bits and steps 16, so that their products are exact.
template <int Bits>
struct CodebookArithmetic {
  using Levels = LloydMax<Bits>;
  struct Scale {
    float step;
    float inverse;  ///< of the root mean square, by which codes are chosen; 0 in a block without a step
  };
  static constexpr bool exact_products = true;

  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s) {
    const auto b = to_bits(x * s.inverse);
    return as_int(levels_below<1>(as_int(b & kMagnitudeMask))) | (as_int(b) >> 31 & -Levels::count);
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) {
    const auto sign = as_unsigned(code) << (32 - Bits) & kSignMask;
    return from_bits(value_bits<Levels::count - 1>(code & (Levels::count - 1)) | sign) * s.step;
  }
  /// The level of a code as a whole number of 64ths.
  TIGHTWIRE_HD static constexpr auto level(const auto& code) {
    return as_int(level_at<Levels::count - 1>(code & (Levels::count - 1)));
  }

 private:
  /// How many of the boundaries from `I` on a magnitude has reached.
  template <int I>
  TIGHTWIRE_HD static constexpr auto levels_below(const auto& magnitude) {
    if constexpr (I == Levels::count) {
      return as_unsigned(magnitude & 0);
    } else {
      constexpr int kBoundary = Levels::template boundary_bits<I>;
      return levels_below<I + 1>(magnitude) +
             select(magnitude >= kBoundary, as_unsigned(magnitude & 0) | 1u, as_unsigned(magnitude & 0));
    }
  }
  template <int I>
  TIGHTWIRE_HD static constexpr auto value_bits(const auto& index) {
    constexpr std::uint32_t kValue = Levels::template value_bits<I>;
    if constexpr (I == 0)
      return as_unsigned(index & 0) | kValue;
    else
      return select(index >= I, as_unsigned(index & 0) | kValue, value_bits<I - 1>(index));
  }
  template <int I>
  TIGHTWIRE_HD static constexpr auto level_at(const auto& index) {
    constexpr std::uint32_t kLevel = Levels::template level<I>;
    if constexpr (I == 0)
      return as_unsigned(index & 0) | kLevel;
    else
      return select(index >= I, as_unsigned(index & 0) | kLevel, level_at<I - 1>(index));
  }
};

/// The same of three levels, which has the least error at five codes to a byte: minus a level, nothing, or a level.
/// Better than one bit for some elements and two for others, which come to 0.22 of the mean square at 1.6 bits where
/// this has 0.19.
struct ThreeLevelArithmetic {
  using Scale = CodebookArithmetic<1>::Scale;
  static constexpr bool exact_products = true;
  static constexpr int level_in_64ths = 78;
  static constexpr int boundary_bits = as_int(to_bits(39.0f / 64.0f));

  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s) {
    const auto b = to_bits(x * s.inverse);
    const auto reached = as_int(select(as_int(b & kMagnitudeMask) >= boundary_bits, (b & 0u) | 1u, b & 0u));
    const auto sign = as_int(b) >> 31;
    return (reached ^ sign) - sign;
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) {
    return to_float(code) * (static_cast<float>(level_in_64ths) / 64.0f) * s.step;
  }
  TIGHTWIRE_HD static constexpr auto level(const auto& code) { return (code & 1) * level_in_64ths; }
};

/// `x` to 16 significant bits, within what the levels of a codebook can be multiplied with.
TIGHTWIRE_HD constexpr float codebook_step(float x) {
  const std::uint32_t b = to_bits(x) & kMagnitudeMask;
  if (b >= kInfinityBits) return from_bits(0x7fc00000u);
  if (b == 0) return 0.0f;
  const float rounded = from_bits((b + 0x7fu + ((b >> 8) & 1u)) & ~0xffu);
  return rounded < 0x1p-120f ? 0x1p-120f : rounded > 0x1p126f ? 0x1p126f : rounded;
}

}  // namespace detail

/// In place of a number of bits: three levels, five codes to a byte.
inline constexpr int kThreeLevels = 5;

/// Codebooks of 1 to 4 bits, and of 1.6, for Gaussian data, which is what a rotation makes of any: use it as
/// `hadamard:4096+lloyd4`. One fp32 step of 16 significant bits per block, fitted to the codes:
///   lloyd  the step of least error, <x, c> / <c, c>: for use with error feedback
///   eden   ||x||^2 / <x, c>, with which the mean over rotations is exact (EDEN, Vargaftik et al. 2022): without
template <int Bits, bool Unbiased>
requires(Bits >= 1 && Bits <= kThreeLevels) struct Codebook {
  static constexpr std::string_view names[2][5] = {{"lloyd1", "lloyd2", "lloyd3", "lloyd4", "lloyd1.6"},
                                                   {"eden1", "eden2", "eden3", "eden4", "eden1.6"}};
  static constexpr std::string_view name = names[Unbiased ? 1 : 0][Bits - 1];
  static constexpr bool five_per_byte = Bits == kThreeLevels;
  static constexpr int bits = Bits - (five_per_byte ? kThreeLevels - 2 : 0);  // three levels: 2 between the loops
  static constexpr float errors[2][5] = {{0.61f, 0.35f, 0.19f, 0.1f, 0.45f}, {0.76f, 0.37f, 0.19f, 0.1f, 0.5f}};
  static constexpr float accuracy = errors[Unbiased ? 1 : 0][Bits - 1];
  int block = five_per_byte ? 1280 : 1024;

  using Stat = Moments;
  using Param = float;
  using Arithmetic = std::conditional_t<five_per_byte, detail::ThreeLevelArithmetic, detail::CodebookArithmetic<Bits>>;
  using Scale = typename Arithmetic::Scale;

  /// The root mean square: by it codes are chosen, before there is a step.
  TIGHTWIRE_HD static Param param(const Stat& stat) { return detail::codebook_step(stat.root_mean_square()); }
  /// A step from the wire may be anything: it is cut to the bits that make products exact.
  TIGHTWIRE_HD static constexpr Scale scale(Param param) {
    const std::uint32_t b = detail::to_bits(param);
    const bool finite = (b & detail::kMagnitudeMask) < detail::kInfinityBits;
    const float step = detail::from_bits(finite ? b & ~0xffu : 0x7fc00000u);
    const bool usable = step >= 0x1p-126f && step <= 0x1p126f;
    return {step, usable ? 1.0f / step : 0.0f};
  }
  /// The step, from sums over the block of magnitudes (in units of the statistic) times levels, and of squared levels.
  TIGHTWIRE_HD static Param fit(const Stat& stat, std::uint32_t products, std::uint32_t squared_levels) {
    if (products == 0 || !stat.finite()) return param(stat);
    const float ratio = Unbiased ? static_cast<float>(stat.squares) / static_cast<float>(products)
                                 : static_cast<float>(products) / static_cast<float>(squared_levels);
    return detail::codebook_step(detail::least(ratio * 64.0f / Stat::units * stat.value(), 0x1.fffffep127f));
  }
  static constexpr bool lossless(ElementType) { return false; }
};
template <int Bits>
using Lloyd = Codebook<Bits, false>;
template <int Bits>
using Eden = Codebook<Bits, true>;
static_assert(BlockCodec<Lloyd<4>>);

}  // namespace tightwire
