#pragma once
#include <cstdint>

#include <tightwire/detail/hd.hpp>

namespace tightwire::detail {

// One float at a time. lanes.hpp has the same names for several, so that what is written in these terms, with `auto`
// for the float, is the definition of a codec for scalar code, vector registers and device threads alike.

TIGHTWIRE_HD constexpr std::uint32_t to_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
TIGHTWIRE_HD constexpr float from_bits(std::uint32_t b) { return __builtin_bit_cast(float, b); }
TIGHTWIRE_HD constexpr int as_int(std::uint32_t b) { return static_cast<int>(b); }
TIGHTWIRE_HD constexpr std::uint32_t as_unsigned(int i) { return static_cast<std::uint32_t>(i); }
TIGHTWIRE_HD constexpr float to_float(int i) { return static_cast<float>(i); }
TIGHTWIRE_HD constexpr float least(float a, float b) { return a < b ? a : b; }
TIGHTWIRE_HD constexpr int least(int a, int b) { return a < b ? a : b; }
TIGHTWIRE_HD constexpr float greatest(float a, float b) { return a > b ? a : b; }
TIGHTWIRE_HD constexpr int greatest(int a, int b) { return a > b ? a : b; }
TIGHTWIRE_HD constexpr std::uint32_t select(bool condition, std::uint32_t a, std::uint32_t b) {
  return condition ? a : b;
}

inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
inline constexpr std::uint32_t kMagnitudeMask = 0x7fffffffu;
inline constexpr std::uint32_t kSignMask = 0x80000000u;

TIGHTWIRE_HD constexpr int min(int a, int b) { return a < b ? a : b; }
TIGHTWIRE_HD constexpr int max(int a, int b) { return a > b ? a : b; }

/// 1.5 * 2^23. What it is added to leaves its nearest integer in the low mantissa bits: strict IEEE, the same
/// everywhere, and the only form of rounding that compilers vectorise without -ffast-math.
inline constexpr float kNearestShift = 12582912.0f;
inline constexpr int kNearestShiftBits = 0x4b400000;

/// Nearest integer, ties to even, of |t| < 2^22. No value of t is undefined behaviour, since the bits are never
/// converted from float to int.
TIGHTWIRE_HD constexpr auto nearest(const auto& t) { return as_int(to_bits(t + kNearestShift)) - kNearestShiftBits; }

}  // namespace tightwire::detail
