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
  TIGHTWIRE_HD constexpr void join(AbsMax other) { add(other.bits); }
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
  TIGHTWIRE_HD constexpr void join(SignedAbsMax other) { add(other.bits); }
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
  TIGHTWIRE_HD constexpr void join(Extent other) {
    add(other.greatest);
    add_second(other.complement);
  }

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

/// The largest magnitude, and the sums of magnitudes and of their squares in units of a 1023rd of it, rounded:
/// integers, so that sums are the same in any order. A statistic that has a `moment` is formed in two passes.
struct Moments : AbsMax {
  static constexpr float units = 1023.0f;
  /// Blocks that reach no further are taken to have all elements equal: the inverse of their unit is out of range.
  static constexpr float smallest = 0x1p-110f;
  std::uint32_t sum = 0;
  std::uint32_t squares = 0;  ///< of up to 4096 elements: less than 2^32
  std::uint32_t count = 0;

  /// What `moment` multiplies with: 0 where there is nothing to be said.
  TIGHTWIRE_HD constexpr float inverse_unit() const {
    const float largest = value();
    return finite() && largest >= smallest ? units / largest : 0.0f;
  }
  TIGHTWIRE_HD static constexpr auto moment(const auto& x, float inverse_unit) {
    using detail::to_bits, detail::from_bits, detail::least;
    return detail::nearest(least(from_bits(to_bits(x) & detail::kMagnitudeMask) * inverse_unit, units));
  }
  /// Of `elements` elements, with these sums.
  TIGHTWIRE_HD constexpr void add_moments(std::uint32_t elements, std::uint32_t of_units, std::uint32_t of_squares) {
    const bool known = inverse_unit() != 0.0f;
    const auto one = static_cast<std::uint32_t>(units);
    count = elements;
    sum = known ? of_units : elements * one;
    squares = known ? of_squares : elements * one * one;
  }
  /// `factor` times the mean magnitude, no more than the largest fp32. Counts and sums are exact in fp32.
  TIGHTWIRE_HD constexpr float mean(float factor = 1.0f) const {
    return held(static_cast<float>(sum) / (units * static_cast<float>(count)) * factor);
  }
  TIGHTWIRE_HD float root_mean_square() const {
    return held(__builtin_sqrtf(static_cast<float>(squares) / static_cast<float>(count)) / units);
  }
  /// The Euclidean norm, no more than the largest fp32.
  TIGHTWIRE_HD float norm() const { return held(__builtin_sqrtf(static_cast<float>(squares)) / units); }

 private:
  /// A multiple of the largest magnitude; that itself where it is not finite.
  TIGHTWIRE_HD constexpr float held(float multiple) const {
    return finite() ? detail::least(multiple * value(), 0x1.fffffep127f) : value();
  }
};

}  // namespace tightwire
