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
  TIGHTWIRE_HD static constexpr auto code(const auto& x, Scale) {
    using detail::to_bits, detail::as_int, detail::select;
    const auto b = to_bits(x);
    const auto nan = as_int(b & detail::kMagnitudeMask) > static_cast<int>(detail::kInfinityBits);
    if constexpr (Wire == ElementType::f32)
      return as_int(select(nan, 0x7fc00000u, b));
    else if constexpr (Wire == ElementType::bf16)
      return as_int(select(nan, 0x7fc0u, detail::bf16_bits(x)));
    else
      return as_int(select(nan, 0x7e00u, detail::f16_bits(x)));
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, Scale) {
    using detail::from_bits, detail::as_unsigned;
    if constexpr (Wire == ElementType::f32)
      return from_bits(as_unsigned(code));
    else if constexpr (Wire == ElementType::bf16)
      return detail::bf16_value(as_unsigned(code));
    else
      return detail::f16_value(as_unsigned(code));
  }
  static constexpr bool lossless(ElementType buffer) { return Wire == ElementType::f32 || Wire == buffer; }
};

using Dense = DenseAs<ElementType::f32>;
using Bf16 = DenseAs<ElementType::bf16>;
using Fp16 = DenseAs<ElementType::f16>;
static_assert(BlockCodec<Dense> && BlockCodec<Bf16> && BlockCodec<Fp16>);

}  // namespace tightwire
