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

/// Least and greatest element, as integers in the order of the floats; NaNs lie beyond the infinities. Both are kept as
/// maxima, the least as that of the complements. Elements must be below 2^125, so that neither their
/// difference nor its inverse leaves the normal numbers.
struct Extent {
  int greatest = static_cast<int>(0x80000000u);
  int complement = static_cast<int>(0x80000000u);
  TIGHTWIRE_HD static constexpr auto key(const auto& x) {
    using detail::to_bits, detail::as_int, detail::as_unsigned;
    const auto b = as_int(to_bits(x));
    return b ^ as_int(as_unsigned(b >> 31) >> 1);
  }
  TIGHTWIRE_HD static constexpr auto second_key(const auto& x) { return ~key(x); }
  TIGHTWIRE_HD constexpr void add(int key) { greatest = detail::max(greatest, key); }
  TIGHTWIRE_HD constexpr void add_second(int key) { complement = detail::max(complement, key); }

  TIGHTWIRE_HD static constexpr float from_key(int key) {
    return detail::from_bits(
        static_cast<std::uint32_t>(key ^ static_cast<int>(static_cast<std::uint32_t>(key >> 31) >> 1)));
  }
  TIGHTWIRE_HD constexpr float high() const { return from_key(greatest); }
  TIGHTWIRE_HD constexpr float low() const { return from_key(~complement); }
  TIGHTWIRE_HD constexpr bool finite() const {
    constexpr int kLimit = 0x7e000000;  // 2^125
    return greatest < kLimit && complement < kLimit;
  }
};

}  // namespace tightwire
