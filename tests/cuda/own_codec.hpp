#pragma once
#include <cstdint>
#include <string_view>

#include <tightwire/codec/concept.hpp>
#include <tightwire/detail/bits.hpp>

namespace tightwire::testing {

/// Least and greatest element, with a key that is no integer and no `join`: one thread forms it.
struct LeastAndGreatest {
  struct Key {
    float low, high;
  };
  float low = 0x1.fffffep127f, high = -0x1.fffffep127f;
  bool all_finite = true;

  TIGHTWIRE_HD static constexpr Key key(float x) { return {x, x}; }
  TIGHTWIRE_HD constexpr void add(Key key) {
    low = detail::least(low, key.low);
    high = detail::greatest(high, key.high);
    all_finite = all_finite && key.low - key.low == 0.0f;
  }
  TIGHTWIRE_HD constexpr bool finite() const { return all_finite && high - low < 1e37f; }
};

/// A codec that the library does not have: 4 bits from the least element to the greatest, both fp32. Its products are
/// not exact, so that a fused multiply-add would show.
struct OwnAffine {
  static constexpr std::string_view name = "own-affine";
  static constexpr int bits = 4;
  static constexpr float accuracy = 0.11f;
  int block = 64;

  using Stat = LeastAndGreatest;
  struct Param {
    float low, step;
  };
  struct Scale {
    float low, step, inverse;
  };

  TIGHTWIRE_HD static constexpr Param param(Stat stat) {
    if (!stat.finite()) return {detail::from_bits(0x7fc00000u), 0.0f};
    return {stat.low, (stat.high - stat.low) / 15.0f};
  }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) {
    return {param.low, param.step, param.step > 1e-30f ? 1.0f / param.step : 0.0f};
  }
  TIGHTWIRE_HD static constexpr int code(float x, Scale scale) {
    return detail::nearest(detail::greatest(detail::least((x - scale.low) * scale.inverse, 15.0f), 0.0f));
  }
  /// Codes arrive with their top bit extended.
  TIGHTWIRE_HD static constexpr float value(int code, Scale scale) {
    return scale.low + static_cast<float>(code & 15) * scale.step;
  }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<OwnAffine>);

}  // namespace tightwire::testing
