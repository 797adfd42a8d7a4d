#pragma once
#include <cstdint>

#include <tightwire/element.hpp>

namespace tightwire::detail {

/// Largest step on the wire for codes up to `top`: top * step must not overflow.
TIGHTWIRE_HD constexpr std::uint32_t largest_step(float top) { return to_bits(0x1.fffffep127f / top) >> 16; }

/// The magnitude of a quantization step, largest / top, as bf16 bits: to nearest even, or up (`Up`), never subnormal
/// (so that flush-to-zero modes cannot change a decoded value, which is always a multiple of a normal number) and never
/// so large that a code overflows. Eight significant bits make every product code * step exact in fp32, so that whether
/// a compiler contracts it with a following addition cannot change a bit. Rounding to nearest keeps the top code of up
/// to 127: (1 ± 2^-8) * 127 rounds to 127 or is clamped to it. Rounding up clamps nothing. 0 stays 0, and only 0, even
/// where a CPU that flushes subnormals makes the quotient 0. A NaN or infinity becomes NaN: the block decodes to NaN in
/// every element.
template <bool Up>
TIGHTWIRE_HD constexpr std::uint16_t step_bits(float largest_element, float top, float largest_code) {
  // Without branches, so that compilers take several blocks at a time.
  const std::uint32_t element = to_bits(largest_element) & kMagnitudeMask;
  const std::uint32_t magnitude = to_bits(largest_element / top) & kMagnitudeMask;
  const std::uint32_t carry = Up ? 0xffffu : 0x7fffu + ((magnitude >> 16) & 1u);
  const std::uint32_t rounded = (magnitude + carry) >> 16;
  const std::uint32_t largest = largest_step(largest_code);
  std::uint32_t step = rounded < 0x0080u ? 0x0080u : rounded;
  step = step > largest ? largest : step;
  step = element == 0 ? 0 : step;
  return static_cast<std::uint16_t>(element >= kInfinityBits ? 0x7fc0u : step);
}

template <bool Up = false>
TIGHTWIRE_HD constexpr std::uint16_t step_bits(float largest_element, float top) {
  return step_bits<Up>(largest_element, top, top);
}

/// The nearest multiple of 2^-126, the smallest normal number; 0 where that is nearest. Large numbers are multiples
/// anyway.
TIGHTWIRE_HD constexpr float normal_multiple(float x) {
  const std::uint32_t magnitude = to_bits(x) & kMagnitudeMask;
  // Subnormals go by their bits: a CPU may take them for 0 in arithmetic.
  if (magnitude < 0x00800000u) return from_bits(magnitude > 0x00400000u ? 0x00800000u | (to_bits(x) & kSignMask) : 0u);
  // With the sign of x, so that the sum stays in the binade whose unit is 2^-126.
  const float align = from_bits(0x0c000000u | (to_bits(x) & kSignMask));  // 2^-103
  return magnitude < 0x0c000000u ? (x + align) - align : x;
}

/// Least and greatest code.
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
/// From the wire a step may be anything: what is not finite is the one NaN, so that every decoder gives the same.
TIGHTWIRE_HD constexpr StepScale step_scale(std::uint16_t param, StepRange range) {
  const std::uint32_t magnitude = param & 0x7fffu;
  const float step = magnitude >= 0x7f80u ? from_bits(0x7fc00000u) : from_bf16(param);
  const bool usable = magnitude - 1 < 0x7f80u - 1;  // neither 0 nor infinite nor NaN
  const float inverse = 1.0f / step;
  return {step, usable ? inverse : 0.0f, usable ? range.low : 0.0f, usable ? range.high : 0.0f};
}

/// Codes times a step: the arithmetic of the integer codecs. Loops know it, and do the same in fewer instructions,
/// since a code of up to 16 bits times a bf16 step is exact. Symmetric: the range is as far below 0 as above.
template <bool Symmetric>
struct StepArithmetic {
  using Scale = StepScale;
  static constexpr bool exact_products = true;

  /// Nearest code. The clamp before the rounding is there for the extremes (`largest_step`, non-finite input), and
  /// keeps the multiplication apart from the addition inside `nearest`, so that no compiler may contract the two.
  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s) {
    return nearest(greatest(least(x * s.inverse, s.high), s.low));
  }
  /// Up or down by chance, `noise` in (-1/2, 1/2).
  TIGHTWIRE_HD static constexpr auto code(const auto& x, const Scale& s, const auto& noise) {
    return nearest(greatest(least(x * s.inverse, s.high), s.low) + noise);
  }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, const Scale& s) { return to_float(code) * s.step; }
};

}  // namespace tightwire::detail
