#pragma once
// Instructions of PTX that are more than an operator of C++. What is included by the translator's output, which is
// compiled with -ffp-contract=off.
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "device.hpp"

namespace cuda_emulation::ptx {

inline float f32(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline double f64(std::uint64_t bits) { return std::bit_cast<double>(bits); }
inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::uint64_t bits_of(double x) { return std::bit_cast<std::uint64_t>(x); }

/// Arithmetic on a GPU gives one NaN, whatever its operands were.
inline float canonical(float x) { return x != x ? f32(0x7fffffffu) : x; }
inline double canonical(double x) { return x != x ? f64(0x7fffffffffffffffu) : x; }
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

/// minNum and maxNum of IEEE 754: a NaN loses against a number, and -0 is below 0.
template <class T>
T least(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
T greatest(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

enum class Round { nearest, zero, down, up };
inline double rounded(double x, Round how) {
  switch (how) {
    case Round::nearest: return std::nearbyint(x);
    case Round::zero: return std::trunc(x);
    case Round::down: return std::floor(x);
    default: return std::ceil(x);
  }
}
/// A float as an integer: saturates, and a NaN becomes 0 (in 64 bits the least integer).
template <class I>
I to_integer(double x, Round how) {
  if (x != x) return sizeof(I) == 8 ? static_cast<I>(std::uint64_t{1} << 63) : I{0};
  x = rounded(x, how);
  const double end = std::ldexp(1.0, std::numeric_limits<I>::digits);
  if (x < static_cast<double>(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
  return x >= end ? std::numeric_limits<I>::max() : static_cast<I>(x);
}

/// Shifts by the width and more give 0, or the sign.
template <class U>
U shift_left(U a, std::uint32_t by) {
  return by >= 8 * sizeof(U) ? U{0} : static_cast<U>(a << by);
}
template <class T>
T shift_right(T a, std::uint32_t by) {
  if (by >= 8 * sizeof(T)) return std::is_signed_v<T> && a < 0 ? static_cast<T>(-1) : T{0};
  return static_cast<T>(a >> by);
}
/// Of the 64 bits high:low, the upper or the lower half after a shift.
inline std::uint32_t funnel_left(std::uint32_t low, std::uint32_t high, std::uint32_t by, bool wraps) {
  const std::uint32_t distance = wraps ? by & 31u : by > 32 ? 32 : by;
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  return distance == 32 ? low : static_cast<std::uint32_t>((both << distance) >> 32);
}
inline std::uint32_t funnel_right(std::uint32_t low, std::uint32_t high, std::uint32_t by, bool wraps) {
  const std::uint32_t distance = wraps ? by & 31u : by > 32 ? 32 : by;
  return static_cast<std::uint32_t>((std::uint64_t{high} << 32 | low) >> distance);
}
/// Any function of three bits, by its table.
inline std::uint32_t lop3(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t table) {
  std::uint32_t result = 0;
  for (std::uint32_t row = 0; row < 8; ++row) {
    if ((table >> row & 1u) == 0) continue;
    result |= ((row & 4u) != 0 ? a : ~a) & ((row & 2u) != 0 ? b : ~b) & ((row & 1u) != 0 ? c : ~c);
  }
  return result;
}
/// Four of the eight bytes of b:a, or the sign of one.
inline std::uint32_t permute(std::uint32_t a, std::uint32_t b, std::uint32_t selectors) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  std::uint32_t result = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t selector = selectors >> (4 * i) & 15u;
    auto byte = static_cast<std::uint32_t>(bytes >> (8 * (selector & 7u)) & 255u);
    if ((selector & 8u) != 0) byte = (byte & 128u) != 0 ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
template <class T>
T extract_bits(T a, std::uint32_t from, std::uint32_t length) {
  using U = std::make_unsigned_t<T>;
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  from &= 255u;
  length &= 255u;
  if (length == 0) return 0;
  const auto bits = static_cast<U>(a);
  const std::uint32_t last = std::min(from + length - 1, kWidth - 1);
  const bool negative = std::is_signed_v<T> && (bits >> last & 1u) != 0;
  U field = from >= kWidth ? U{0} : static_cast<U>(bits >> from);
  const std::uint32_t kept = from >= kWidth ? 0 : std::min(length, kWidth - from);
  if (kept < kWidth) {
    const U mask = kept == 0 ? U{0} : static_cast<U>((U{1} << kept) - 1);
    field = static_cast<U>(negative ? field | static_cast<U>(~mask) : field & mask);
  }
  return static_cast<T>(field);
}
template <class U>
U insert_bits(U field, U into, std::uint32_t at, std::uint32_t length) {
  constexpr std::uint32_t kWidth = 8 * sizeof(U);
  at &= 255u;
  length &= 255u;
  if (length == 0 || at >= kWidth) return into;
  const U ones = length >= kWidth ? static_cast<U>(~U{0}) : static_cast<U>((U{1} << length) - 1);
  const auto mask = static_cast<U>(ones << at);
  return static_cast<U>((into & static_cast<U>(~mask)) | (static_cast<U>(field << at) & mask));
}
template <class T>
std::uint32_t find_bit(T a) {
  using U = std::make_unsigned_t<T>;
  const auto bits = static_cast<U>(std::is_signed_v<T> && a < 0 ? ~a : a);
  return bits == 0 ? ~0u : static_cast<std::uint32_t>(std::bit_width(bits) - 1);
}
template <class U>
U reverse_bits(U a) {
  U result = 0;
  for (std::size_t i = 0; i < 8 * sizeof(U); ++i) result = static_cast<U>(result << 1 | (a >> i & 1u));
  return result;
}
template <class T>
T high_product(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T)));
}
/// Of which dividing by 0 gives something, and nothing traps.
template <class T>
T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1))
    return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
  return static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}

template <class T>
using Aliased [[gnu::may_alias]] = T;

template <class T>
T load(const std::byte* from) {
  return *reinterpret_cast<const Aliased<T>*>(from);
}
template <class T>
void store(std::byte* to, T value) {
  *reinterpret_cast<Aliased<T>*>(to) = value;
}
/// What other threads may be writing. A thread that polls lets them.
template <class T>
T load_strong(const std::byte* from) {
  yield();
  return __atomic_load_n(reinterpret_cast<const Aliased<T>*>(from), __ATOMIC_ACQUIRE);
}
template <class T>
void store_strong(std::byte* to, T value) {
  __atomic_store_n(reinterpret_cast<Aliased<T>*>(to), value, __ATOMIC_RELEASE);
}
template <class U, class Change>
U exchange(std::byte* at, const Change& change) {
  auto* const word = reinterpret_cast<Aliased<U>*>(at);
  U old = __atomic_load_n(word, __ATOMIC_RELAXED);
  U next = change(old);
  while (!__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) next = change(old);
  return old;
}

}  // namespace cuda_emulation::ptx
