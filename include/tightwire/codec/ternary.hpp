#pragma once
#include <string_view>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

/// Minus a step, nothing, or a step, in 2 bits. To nearest, the step is 1.534 mean magnitudes, which of all steps has
/// the least error on Gaussian data. Stochastically it is the largest magnitude, so that the mean is exact (TernGrad,
/// Wen et al. 2017). Zero is exact; odd-symmetric. `Five`: five codes to a byte, 1.6 bits, in blocks of a multiple of
/// 80 elements (others end in a byte row that is not full).
template <bool Five>
struct TernaryCodec {
  static constexpr std::string_view name = Five ? "ternary-five" : "ternary";
  static constexpr int bits = 2;
  static constexpr float accuracy = 0.45f;
  int block = Five ? 320 : 256;
  Rounding round = Rounding::automatic;

  using Stat = Moments;
  using Param = std::uint16_t;
  using Arithmetic = detail::StepArithmetic<true>;
  using Scale = Arithmetic::Scale;

  TIGHTWIRE_HD static constexpr Param param(const Stat& stat) { return detail::step_bits(stat.mean(1.534f), 1.0f); }
  TIGHTWIRE_HD static constexpr Param unbiased_param(const Stat& stat) {
    return detail::step_bits<true>(stat.value(), 1.0f);
  }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) { return detail::step_scale(param, {-1.0f, 1.0f}); }
  static constexpr bool lossless(ElementType) { return false; }
  static constexpr int base = Five ? 3 : 0;  ///< as a number of which five are a byte
};
using Ternary = TernaryCodec<false>;
using TernaryFive = TernaryCodec<true>;
static_assert(BlockCodec<Ternary>);

}  // namespace tightwire
