#pragma once
#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>

namespace tightwire {

/// The elements themselves, as fp32 (exact), bf16 or fp16 on the wire. Runs through the same loops, collectives and
/// transports as every other codec, so that comparing with it compares codecs and not code paths.
/// NaN and infinity pass (NaN as the canonical one). A finite value that the wire type cannot hold becomes an infinity
/// and counts as non-finite, so that the policy sees it.
template <ElementType Wire>
struct DenseAs {
  static constexpr std::string_view name = Wire == ElementType::f32    ? "dense"
                                           : Wire == ElementType::bf16 ? "bf16"
                                                                       : "fp16";
  static constexpr int bits = static_cast<int>(8 * element_bytes(Wire));
  static constexpr float accuracy = Wire == ElementType::f32 ? 0.0f : Wire == ElementType::bf16 ? 0.003f : 0.0004f;
  int block = 256;  // the unit in which ranks share the work; the wire has no trace of it

  struct Stat : AbsMax {
    /// Magnitude from which a value rounds to infinity on the wire.
    static constexpr int kOverflow = Wire == ElementType::f32    ? 0x7f800000
                                     : Wire == ElementType::bf16 ? 0x7f7f8000
                                                                 : 0x477ff000;
    TIGHTWIRE_HD constexpr bool finite() const { return bits < kOverflow; }
  };
  struct Param {};
  struct Scale {};

  TIGHTWIRE_HD static constexpr Param param(Stat) { return {}; }
  TIGHTWIRE_HD static constexpr Scale scale(Param) { return {}; }
  TIGHTWIRE_HD static constexpr int code(float x, Scale) {
    const std::uint32_t b = detail::to_bits(x);
    const bool nan = (b & detail::kMagnitudeMask) > detail::kInfinityBits;
    if constexpr (Wire == ElementType::f32) {
      return static_cast<int>(nan ? 0x7fc00000u : b);
    } else {
      const std::uint32_t h = Wire == ElementType::bf16 ? detail::to_bf16(x) : detail::to_f16(x);
      return static_cast<int>(nan ? (Wire == ElementType::bf16 ? 0x7fc0u : 0x7e00u) : h);
    }
  }
  TIGHTWIRE_HD static constexpr float value(int code, Scale) {
    if constexpr (Wire == ElementType::f32) {
      return detail::from_bits(static_cast<std::uint32_t>(code));
    } else if constexpr (Wire == ElementType::bf16) {
      return detail::from_bf16(static_cast<std::uint16_t>(code));
    } else {
      return detail::from_f16(static_cast<std::uint16_t>(code));
    }
  }
  static constexpr bool lossless(ElementType buffer) { return Wire == ElementType::f32 || Wire == buffer; }
};

using Dense = DenseAs<ElementType::f32>;
using Bf16 = DenseAs<ElementType::bf16>;
using Fp16 = DenseAs<ElementType::f16>;
static_assert(BlockCodec<Dense> && BlockCodec<Bf16> && BlockCodec<Fp16>);

}  // namespace tightwire
