#pragma once
#include <cstdint>
#include <string_view>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

namespace detail {

/// Plus or minus a step, by the sign of the element.
struct SignArithmetic {
  struct Scale {
    float step;
    std::uint32_t signs;  ///< mask: a NaN has none
  };
  static constexpr bool exact_products = true;

  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale&) { return as_int(to_bits(x)) >> 31; }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) {
    return from_bits((as_unsigned(code) & s.signs) | to_bits(s.step));
  }
};

}  // namespace detail

/// One bit per element, its sign, and one bf16 step per block: the mean magnitude, which of all steps has the least
/// error (1-bit SGD, Seide et al. 2014; EF-signSGD, Karimireddy et al. 2019). An element of 0 decodes to plus the step.
/// For use with error feedback: alone it is biased.
struct Sign {
  static constexpr std::string_view name = "sign";
  static constexpr int bits = 1;
  static constexpr float accuracy = 0.61f;
  int block = 256;

  using Stat = Moments;
  using Param = std::uint16_t;
  using Arithmetic = detail::SignArithmetic;
  using Scale = Arithmetic::Scale;

  TIGHTWIRE_HD static constexpr Param param(const Stat& stat) { return detail::step_bits(stat.mean(), 1.0f); }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) {
    const float step = detail::step_scale(static_cast<std::uint16_t>(param & 0x7fffu), {0, 0}).step;
    return {step, step == step ? detail::kSignMask : 0u};
  }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<Sign>);

}  // namespace tightwire
