#pragma once
#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

namespace detail {

/// The magnitudes of the quantizer of `Levels` levels that has the least error on standard Gaussian data (Lloyd 1982,
/// Max 1960), in 64ths: whole numbers of up to 8 bits. An odd number has 0 among them.
template <int Levels>
struct LloydMax {
  static constexpr int count = (Levels + 1) / 2;
  static constexpr int all[7][8] = {{51},    {29, 97},      {16, 48, 86, 138},   {8, 25, 42, 60, 80, 104, 132, 175},
                                    {0, 78}, {20, 64, 121}, {0, 28, 59, 94, 144}};
  static constexpr int row = Levels == 2    ? 0
                             : Levels == 4  ? 1
                             : Levels == 8  ? 2
                             : Levels == 16 ? 3
                             : Levels == 3  ? 4
                             : Levels == 6  ? 5
                                            : 6;
  // Constants and not functions, which device code could not call.
  template <int I>
  static constexpr std::uint32_t level = static_cast<std::uint32_t>(all[row][I]);
  template <int I>
  static constexpr std::uint32_t value_bits = to_bits(static_cast<float>(level<I>) / 64.0f);
  /// Halfway between levels I - 1 and I.
  template <int I>
  static constexpr int boundary_bits = as_int(to_bits(static_cast<float>(level<I - 1> + level<I>) / 128.0f));

  /// How many of the boundaries from `I` on a magnitude has reached, by its bits.
  template <int I = 1>
  TIGHTWIRE_HD static constexpr auto levels_below(const auto& magnitude) {
    if constexpr (I == count) {
      return as_unsigned(magnitude & 0);
    } else {
      constexpr int kBoundary = boundary_bits<I>;
      return levels_below<I + 1>(magnitude) +
             select(magnitude >= kBoundary, as_unsigned(magnitude & 0) | 1u, as_unsigned(magnitude & 0));
    }
  }
  template <int I = count - 1>
  TIGHTWIRE_HD static constexpr auto bits_at(const auto& index) {
    constexpr std::uint32_t kValue = value_bits<I>;
    if constexpr (I == 0)
      return as_unsigned(index & 0) | kValue;
    else
      return select(index >= I, as_unsigned(index & 0) | kValue, bits_at<I - 1>(index));
  }
  /// As a whole number of 64ths.
  template <int I = count - 1>
  TIGHTWIRE_HD static constexpr auto level_at(const auto& index) {
    constexpr std::uint32_t kLevel = level<I>;
    if constexpr (I == 0)
      return as_unsigned(index & 0) | kLevel;
    else
      return select(index >= I, as_unsigned(index & 0) | kLevel, level_at<I - 1>(index));
  }
};

/// What encoding a block needs in registers.
struct CodebookScale {
  float step;
  float inverse;  ///< of the root mean square, by which codes are chosen; 0 in a block without a step
};

/// A level of a codebook times a step, with the sign of the element: sign in the top bit, index of the level below.
/// Levels have 8 significant bits and steps 16, so that their products are exact.
template <int Bits>
struct CodebookArithmetic {
  using Levels = LloydMax<(1 << Bits)>;
  using Scale = CodebookScale;
  static constexpr bool exact_products = true;

  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s) {
    const auto b = to_bits(x * s.inverse);
    return as_int(Levels::levels_below(as_int(b & kMagnitudeMask))) | (as_int(b) >> 31 & -Levels::count);
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) {
    const auto sign = as_unsigned(code) << (32 - Bits) & kSignMask;
    return from_bits(Levels::bits_at(code & (Levels::count - 1)) | sign) * s.step;
  }
  /// The level of a code as a whole number of 64ths.
  TIGHTWIRE_HD static constexpr auto level(const auto& code) {
    return as_int(Levels::level_at(code & (Levels::count - 1)));
  }
};

/// The same of numbers of levels that are no power of two, whose codes are digits: the index of a level, and its
/// negative for elements below 0; where no level is 0, its complement. Better than fewer bits for some elements and
/// more for others: at 1.6 bits, one and two come to 0.22 of the mean square, three levels to 0.19.
template <int Number>
struct DigitCodebookArithmetic {
  using Levels = LloydMax<Number>;
  using Scale = CodebookScale;
  static constexpr bool exact_products = true;

  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s) {
    const auto b = to_bits(x * s.inverse);
    return with_sign(as_int(Levels::levels_below(as_int(b & kMagnitudeMask))), as_int(b) >> 31);
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) {
    return from_bits(Levels::bits_at(with_sign(code, code >> 31)) | (as_unsigned(code) & kSignMask)) * s.step;
  }
  TIGHTWIRE_HD static constexpr auto level(const auto& code) {
    return as_int(Levels::level_at(with_sign(code, code >> 31)));
  }

 private:
  /// `sign` is -1 or 0.
  TIGHTWIRE_HD static constexpr auto with_sign(const auto& index, const auto& sign) {
    if constexpr (Number % 2 != 0)
      return (index ^ sign) - sign;
    else
      return index ^ sign;
  }
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
/// Six levels, three codes to a byte.
inline constexpr int kSixLevels = 6;
/// Nine levels, five codes to two bytes.
inline constexpr int kNineLevels = 7;

namespace detail {
/// What a codebook is, by what stands in place of its bits.
struct CodebookForm {
  std::string_view lloyd, eden;
  int base;        ///< of digits; 0: codes are fields
  int bits;        ///< between the loops
  int block;       ///< by default
  float error[2];  ///< root of the NMSE on Gaussian data, at most: lloyd, eden
};
inline constexpr CodebookForm codebook_forms[] = {
    {"lloyd1", "eden1", 0, 1, 1024, {0.61f, 0.76f}},     {"lloyd2", "eden2", 0, 2, 1024, {0.35f, 0.37f}},
    {"lloyd3", "eden3", 0, 3, 1024, {0.19f, 0.19f}},     {"lloyd4", "eden4", 0, 4, 1024, {0.1f, 0.1f}},
    {"lloyd1.6", "eden1.6", 3, 2, 1280, {0.45f, 0.5f}},  {"lloyd2.7", "eden2.7", 6, 4, 768, {0.25f, 0.26f}},
    {"lloyd3.2", "eden3.2", 9, 4, 1280, {0.175f, 0.18f}}};
}  // namespace detail

/// Codebooks of 1 to 4 bits, and of 1.6, 2.7 and 3.2, for Gaussian data, which is what a rotation makes of any: use it
/// as `hadamard:4096+lloyd4`. One fp32 step of 16 significant bits per block, fitted to the codes:
///   lloyd  the step of least error, <x, c> / <c, c>: for use with error feedback
///   eden   ||x||^2 / <x, c>, with which the mean over rotations is exact (EDEN, Vargaftik et al. 2022): without
template <int Bits, bool Unbiased>
requires(Bits >= 1 && Bits <= static_cast<int>(std::size(detail::codebook_forms))) struct Codebook {
  static constexpr detail::CodebookForm form = detail::codebook_forms[Bits - 1];
  static constexpr std::string_view name = Unbiased ? form.eden : form.lloyd;
  static constexpr int base = form.base;
  static constexpr int bits = form.bits;
  static constexpr float accuracy = form.error[Unbiased ? 1 : 0];
  int block = form.block;

  using Stat = Moments;
  using Param = float;
  using Arithmetic =
      std::conditional_t<base != 0, detail::DigitCodebookArithmetic<base>, detail::CodebookArithmetic<form.bits>>;
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
