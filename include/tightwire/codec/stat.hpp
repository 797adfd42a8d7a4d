#pragma once
#include <cstdint>

#include <tightwire/detail/bits.hpp>

namespace tightwire {

/// Largest |x| of a block, kept as bits: for non-negative floats the integer order is the float order, so the maximum
/// is exact, associative, vectorises without -ffast-math, and any infinity or NaN ends up on top instead of being lost.
struct AbsMax {
  int bits = 0;
  TIGHTWIRE_HD static constexpr auto key(const auto& x) {
    using detail::to_bits, detail::as_int;
    return as_int(to_bits(x) & detail::kMagnitudeMask);
  }
  TIGHTWIRE_HD constexpr void add(int key) { bits = detail::max(bits, key); }
  TIGHTWIRE_HD constexpr float value() const { return detail::from_bits(static_cast<std::uint32_t>(bits)); }
  TIGHTWIRE_HD constexpr bool finite() const { return bits < static_cast<int>(detail::kInfinityBits); }
};

/// The element of largest magnitude, with its sign. Where +m and -m tie, -m wins: a rule without an index, so that the
/// maximum can be formed in any order. The key is the magnitude with the sign as the lowest bit.
struct SignedAbsMax {
  std::uint32_t bits = 0;
  TIGHTWIRE_HD static constexpr auto key(const auto& x) {
    using detail::to_bits;
    const auto b = to_bits(x);
    return (b << 1) | (b >> 31);
  }
  TIGHTWIRE_HD constexpr void add(std::uint32_t key) { bits = bits > key ? bits : key; }
  TIGHTWIRE_HD constexpr float value() const { return detail::from_bits((bits >> 1) | (bits << 31)); }
  TIGHTWIRE_HD constexpr bool finite() const { return (bits >> 1) < detail::kInfinityBits; }
};

}  // namespace tightwire
