#pragma once
#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

/// Signed-absmax 4-bit integers in [-8, 7], one signed bf16 step per block: 4.25 bits per element at block 64.
/// The step is -s/8 where s is the element of largest magnitude, so that all sixteen codes are used and s takes -8: a
/// fifth less error than the symmetric form at equal bits. Error at most half a step, but up to one step for an element
/// near -s. Zero is exact.
struct Int4 {
  static constexpr std::string_view name = "int4";
  static constexpr int bits = 4;
  static constexpr float accuracy = 0.11f;
  int block = 64;

  using Stat = SignedAbsMax;
  using Param = std::uint16_t;
  using Scale = detail::StepScale;
  static constexpr detail::StepRange range{-8.0f, 7.0f};

  TIGHTWIRE_HD static constexpr Param param(Stat stat) {
    const float largest = stat.value();
    const std::uint16_t sign = (detail::to_bits(largest) & detail::kSignMask) != 0 ? 0 : 0x8000u;
    const std::uint16_t magnitude = detail::step_bits(largest, 8.0f);
    // 0 and NaN have no sign on the wire, so that equal values are equal bytes.
    return magnitude == 0 || magnitude >= 0x7f80u ? magnitude : static_cast<std::uint16_t>(magnitude | sign);
  }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) { return detail::step_scale(param, range); }
  TIGHTWIRE_HD static constexpr auto code(const auto& x, Scale scale) { return detail::step_code(x, scale); }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, Scale scale) { return detail::step_value(code, scale); }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<Int4>);

}  // namespace tightwire
