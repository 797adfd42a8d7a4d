#pragma once
#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>

namespace tightwire {

/// The elements themselves, as fp32 (exact), bf16 or fp16 on the wire. Runs through the same loops, collectives and
/// transports as every other codec, so that comparing with it compares codecs and not code paths.
/// NaN and infinity pass (NaN as the canonical one). A finite value beyond the range of the wire type becomes the
/// largest finite one of its sign; error feedback has the rest.
template <ElementType Wire>
struct DenseAs {
  static constexpr std::string_view name = Wire == ElementType::f32    ? "dense"
                                           : Wire == ElementType::bf16 ? "bf16"
                                                                       : "fp16";
  static constexpr int bits = static_cast<int>(8 * element_bytes(Wire));
  static constexpr float accuracy = Wire == ElementType::f32 ? 0.0f : Wire == ElementType::bf16 ? 0.003f : 0.0004f;
  int block = 256;  // the unit in which ranks share the work; the wire has no trace of it

  using Stat = AbsMax;
  struct Param {};
  struct Scale {};

  TIGHTWIRE_HD static constexpr Param param(Stat) { return {}; }
  TIGHTWIRE_HD static constexpr Scale scale(Param) { return {}; }
  TIGHTWIRE_HD static constexpr auto code(const auto& x, Scale scale) {
    using detail::to_bits, detail::as_int, detail::as_unsigned, detail::select;
    const auto b = to_bits(x);
    const auto magnitude = as_int(b & detail::kMagnitudeMask);
    const auto nan = magnitude > static_cast<int>(detail::kInfinityBits);
    if constexpr (Wire == ElementType::f32) {
      return as_int(select(nan, 0x7fc00000u, b));
    } else {
      constexpr std::uint32_t kInfinity = Wire == ElementType::bf16 ? 0x7f80u : 0x7c00u;
      constexpr std::uint32_t kNaN = Wire == ElementType::bf16 ? 0x7fc0u : 0x7e00u;
      const auto special = select(nan, kNaN, (b >> 16 & 0x8000u) | kInfinity);
      const auto infinite = magnitude >= static_cast<int>(detail::kInfinityBits);
      return as_int(select(infinite, special, as_unsigned(finite_code(x, scale))));
    }
  }
  TIGHTWIRE_HD static constexpr auto finite_code(const auto& x, Scale) {
    using detail::to_bits, detail::as_int, detail::as_unsigned, detail::least;
    const auto b = to_bits(x);
    if constexpr (Wire == ElementType::f32) {
      return as_int(b);
    } else {
      constexpr int kLargest = Wire == ElementType::bf16 ? 0x7f7f0000 : 0x477fe000;
      const auto held = as_unsigned(least(as_int(b & detail::kMagnitudeMask), kLargest));
      return as_int(rounded(held) | (b >> 16 & 0x8000u));
    }
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

 private:
  TIGHTWIRE_HD static constexpr auto rounded(const auto& magnitude) {
    if constexpr (Wire == ElementType::bf16)
      return detail::bf16_rounded(magnitude);
    else
      return detail::f16_magnitude(magnitude);
  }
};

using Dense = DenseAs<ElementType::f32>;
using Bf16 = DenseAs<ElementType::bf16>;
using Fp16 = DenseAs<ElementType::f16>;
static_assert(BlockCodec<Dense> && BlockCodec<Bf16> && BlockCodec<Fp16>);

}  // namespace tightwire
