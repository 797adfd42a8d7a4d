#pragma once
#include <string_view>

#include <tightwire/codec/integer.hpp>

namespace tightwire {

/// QSGD (Alistarh et al. 2017): levels evenly up to the Euclidean norm of the block, 2^(bits-1) - 1 of either sign;
/// stochastic unless asked otherwise. Under the largest magnitude in place of the norm it is
/// `int<bits>-symmetric:round=stochastic` (or `int6` to `int8`), whose error is smaller for all but the smallest
/// blocks.
template <int Bits>
requires(Bits >= 2 && Bits <= 8) struct Qsgd {
  static constexpr std::string_view name =
      detail::pick_name<Bits>({"", "qsgd2", "qsgd3", "qsgd4", "qsgd5", "qsgd6", "qsgd7", "qsgd8"});
  static constexpr int bits = Bits;
  static constexpr float top = static_cast<float>((1 << (Bits - 1)) - 1);
  /// Rounded to nearest, below half a step almost all is lost.
  static constexpr float accuracy = Bits <= 4 ? 1.0f : 5.2f / top;
  int block = 256;
  Rounding round = Rounding::stochastic;

  using Stat = Moments;
  using Param = std::uint16_t;
  using Arithmetic = detail::StepArithmetic<true>;
  using Scale = Arithmetic::Scale;

  TIGHTWIRE_HD static Param param(const Stat& stat) { return detail::step_bits<true>(stat.norm(), top); }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) { return detail::step_scale(param, {-top, top}); }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<Qsgd<4>>);

}  // namespace tightwire
