#pragma once
#include <array>
#include <string_view>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

namespace detail {
/// The name of a member of a family, by its bits.
template <int Bits>
constexpr std::string_view pick_name(const std::array<std::string_view, 8>& names) {
  return names[Bits - 1];
}
/// Few bits want small blocks: what a large element takes from its neighbours costs more than another step.
constexpr int default_block(int bits) { return bits >= 6 ? 256 : 64; }
}  // namespace detail

/// Symmetric integers of 2 to 8 bits, codes from -(2^(bits-1) - 1) to 2^(bits-1) - 1, one bf16 step per block. Error at
/// most half a step, step = max|x| / (2^(bits-1) - 1) to 2^-8. Zero is exact; odd-symmetric.
template <int Bits>
requires(Bits >= 2 && Bits <= 8) struct SymmetricInt {
  static constexpr std::string_view name = detail::pick_name<Bits>(
      {"", "int2-symmetric", "int3-symmetric", "int4-symmetric", "int5-symmetric", "int6", "int7", "int8"});
  static constexpr int bits = Bits;
  static constexpr float top = static_cast<float>((1 << (Bits - 1)) - 1);
  static constexpr float accuracy = Bits == 2 ? 0.8f : (Bits >= 6 ? 1.0f : 0.88f) / top;
  int block = detail::default_block(Bits);
  Rounding round = Rounding::automatic;

  using Stat = AbsMax;
  using Param = std::uint16_t;
  using Arithmetic = detail::StepArithmetic<true>;
  using Scale = Arithmetic::Scale;

  TIGHTWIRE_HD static constexpr Param param(Stat stat) { return detail::step_bits(stat.value(), top); }
  /// For stochastic rounding: no element lies beyond the last code.
  TIGHTWIRE_HD static constexpr Param unbiased_param(Stat stat) { return detail::step_bits<true>(stat.value(), top); }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) { return detail::step_scale(param, {-top, top}); }
  static constexpr bool lossless(ElementType) { return false; }
};

/// Signed-absmax integers of 2 to 8 bits, codes from -2^(bits-1) to 2^(bits-1) - 1, one signed bf16 step per block. The
/// step is -s / 2^(bits-1) where s is the element of largest magnitude, so that all codes are used and s takes the
/// lowest: at 4 bits a fifth less error than the symmetric form. Error at most half a step, but up to one step for an
/// element near -s. Zero is exact.
template <int Bits>
requires(Bits >= 2 && Bits <= 8) struct SignedAbsMaxInt {
  static constexpr std::string_view name =
      detail::pick_name<Bits>({"", "int2", "int3", "int4", "int5", "int6-signed", "int7-signed", "int8-signed"});
  static constexpr int bits = Bits;
  static constexpr float top = static_cast<float>(1 << (Bits - 1));
  static constexpr float accuracy = Bits == 2 ? 0.45f : (Bits >= 6 ? 1.0f : 0.88f) / top;
  int block = detail::default_block(Bits);
  Rounding round = Rounding::automatic;

  using Stat = SignedAbsMax;
  using Param = std::uint16_t;
  using Arithmetic = detail::StepArithmetic<false>;
  using Scale = Arithmetic::Scale;

  TIGHTWIRE_HD static constexpr Param param(Stat stat) {
    const float largest = stat.value();
    const std::uint32_t sign = ~(detail::to_bits(largest) >> 16) & 0x8000u;
    const std::uint32_t magnitude = detail::step_bits(largest, top);
    // 0 and NaN have no sign on the wire, so that equal values are equal bytes.
    return static_cast<Param>(magnitude - 1 < 0x7f80u - 1 ? magnitude | sign : magnitude);
  }
  /// For stochastic rounding: no element, on either side, lies beyond the last code.
  TIGHTWIRE_HD static constexpr Param unbiased_param(Stat stat) {
    return detail::step_bits<true>(stat.value(), top - 1, top);
  }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) { return detail::step_scale(param, {-top, top - 1}); }
  static constexpr bool lossless(ElementType) { return false; }
};

using Int2 = SignedAbsMaxInt<2>;
using Int3 = SignedAbsMaxInt<3>;
using Int4 = SignedAbsMaxInt<4>;
using Int5 = SignedAbsMaxInt<5>;
using Int6 = SymmetricInt<6>;
using Int7 = SymmetricInt<7>;
using Int8 = SymmetricInt<8>;
static_assert(BlockCodec<Int4> && BlockCodec<Int8>);

}  // namespace tightwire
