#pragma once
#include <cstdint>

#include <tightwire/element.hpp>

namespace tightwire::detail {

/// Largest step on the wire for codes up to `top`: top * step must not overflow.
TIGHTWIRE_HD constexpr std::uint32_t largest_step(float top) { return to_bits(0x1.fffffep127f / top) >> 16; }

/// The magnitude of a quantization step, largest / top, as bf16 bits: to nearest even, never subnormal (so that
/// flush-to-zero modes cannot change a decoded value, which is always a multiple of a normal number) and never so large
/// that a code overflows. Eight significant bits make every product code * step exact in fp32, so that whether a
/// compiler contracts it with a following addition cannot change a bit. Rounding keeps the top code: (1 ± 2^-8) * 127
/// rounds to 127 or is clamped to it. 0 stays 0, and only 0, even where a CPU that flushes subnormals makes the
/// quotient 0. A NaN or infinity becomes NaN: the block decodes to NaN in every element.
TIGHTWIRE_HD constexpr std::uint16_t step_bits(float largest_element, float top) {
  const std::uint32_t element = to_bits(largest_element) & kMagnitudeMask;
  if (element >= kInfinityBits) return 0x7fc0u;
  if (element == 0) return 0;
  const std::uint32_t magnitude = to_bits(largest_element / top) & kMagnitudeMask;
  std::uint32_t rounded = (magnitude + 0x7fffu + ((magnitude >> 16) & 1u)) >> 16;
  rounded = rounded < 0x0080u ? 0x0080u : rounded;
  const std::uint32_t largest = largest_step(top);
  return static_cast<std::uint16_t>(rounded > largest ? largest : rounded);
}

/// The codes of a codec whose scales come from `step_scale`, and whose `code` and `value` are `step_code` and
/// `step_value`. A codec that says so, in a member `range`, is run by loops that know these, in fewer instructions and
/// with the same results, since a code of up to 16 bits times a bf16 step is exact.
struct StepRange {
  float low;
  float high;
};

/// What encoding a block needs in registers. The limits are 0 in a block without a scale (all zero, or not finite).
struct StepScale {
  float step;
  float inverse;
  float low;
  float high;
};
TIGHTWIRE_HD constexpr StepScale step_scale(std::uint16_t param, StepRange range) {
  const float step = from_bf16(param);
  const bool usable = (param & 0x7fffu) != 0 && (param & 0x7fffu) < 0x7f80u;
  return {step, usable ? 1.0f / step : 0.0f, usable ? range.low : 0.0f, usable ? range.high : 0.0f};
}

/// Nearest code. The clamp before the rounding is there for the extremes (`largest_step`, non-finite input), and keeps
/// the multiplication apart from the addition inside `nearest`, so that no compiler may contract the two.
TIGHTWIRE_HD constexpr auto step_code(const auto& x, StepScale s) {
  return nearest(greatest(least(x * s.inverse, s.high), s.low));
}
TIGHTWIRE_HD constexpr auto step_value(const auto& code, StepScale s) { return to_float(code) * s.step; }

}  // namespace tightwire::detail
