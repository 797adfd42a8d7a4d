#pragma once
#include <cstdint>
#include <string_view>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/small_float.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

/// NVFP4: e2m1 under two scales, an e4m3 for every 16 elements and a bf16 for the block, which makes the largest
/// element of the block the largest float under the largest scale, 6 * 448. Sums are formed in fp32 and encoded once,
/// under scales of their own. Signs of scales mean nothing.
///
/// Outliers cost only the elements beside them: on data with rare large elements it has the least error of all codecs
/// of some 4 bits. A NaN or infinity takes its 16 elements along, and no more of the block.
struct NvFp4 {
  static constexpr std::string_view name = "nvfp4";
  static constexpr int bits = 4;
  static constexpr float accuracy = 0.1f;
  static constexpr int part = 16;
  int block = 1024;
  Rounding round = Rounding::automatic;

  using Stat = AbsMax;
  using Shared = std::uint16_t;
  using Param = std::uint8_t;
  using Arithmetic = detail::SmallFloatArithmetic<detail::E2M1>;
  using Scale = Arithmetic::Scale;
  using Factor = detail::E4M3;

  /// `stat`: of the finite parts. Rounded up, so that no factor need be larger than the largest; large enough for the
  /// smallest float under the smallest factor to be a normal number.
  TIGHTWIRE_HD static constexpr Shared shared(Stat stat) {
    constexpr std::uint32_t kSmallest = detail::to_bits(0x1p-126f / (detail::E2M1::unit * Factor::unit)) >> 16;
    const std::uint32_t step = detail::step_bits<true>(stat.value(), Factor::largest * detail::E2M1::largest);
    return static_cast<Shared>(step != 0 && step < kSmallest ? kSmallest : step);
  }
  TIGHTWIRE_HD static constexpr Param param(Stat stat, Shared shared) {
    if (!stat.finite()) return kNaN;
    return shared == 0 ? Param{0} : static_cast<Param>(Factor::nearest_code(factor(stat, shared)));
  }
  /// For stochastic rounding: no element is larger than the largest float.
  TIGHTWIRE_HD static constexpr Param unbiased_param(Stat stat, Shared shared) {
    if (!stat.finite()) return kNaN;
    if (stat.bits == 0 || shared == 0) return 0;
    const float wanted = factor(stat, shared);
    const int nearest = Factor::nearest_code(wanted);
    const int held = nearest == 0 || Factor::decoded(nearest) < wanted ? nearest + 1 : nearest;
    return static_cast<Param>(held < kNaN ? held : kNaN - 1);
  }
  /// Of up to 12 significant bits, so that products with floats are exact.
  TIGHTWIRE_HD static constexpr Scale scale(Param param, Shared shared) {
    const float step = Factor::decoded(param & 0x7f) * detail::from_bf16(static_cast<Shared>(shared & 0x7fffu));
    const bool finite = (detail::to_bits(step) & detail::kMagnitudeMask) < detail::kInfinityBits;
    const bool usable = step >= 0x1p-126f && step <= 0x1p126f;
    return {finite ? step : detail::from_bits(0x7fc00000u), usable ? 1.0f / step : 0.0f};
  }
  static constexpr bool lossless(ElementType) { return false; }

 private:
  static constexpr Param kNaN = 0x7f;
  /// That makes the largest element of a part the largest float.
  TIGHTWIRE_HD static constexpr float factor(Stat stat, Shared shared) {
    return stat.value() / (detail::E2M1::largest * detail::from_bf16(shared));
  }
};
static_assert(BlockCodec<NvFp4>);

}  // namespace tightwire
