#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/detail/hd.hpp>

namespace tightwire::detail {

template <class T, int W>
struct Lanes;
template <class T, int W>
void fill(Lanes<T, W>& x, T value);

/// W values of T in one vector register, or in several where the instruction set has only narrower ones. Overloads of
/// the names in bits.hpp let the arithmetic of a codec, written for one float, work on W of them with the very same
/// operations. Every function is inlined, so that it takes on the instruction set of the loop around it. Arguments go
/// by reference all the same: compilers warn of wide vectors passed by value even where nothing is passed in the end.
template <class T, int W>
struct Lanes {
  typedef T Vector __attribute__((vector_size(sizeof(T) * W)));  // g++ ignores the attribute on a `using`
  Vector v;

  Lanes() = default;
  /// The same value everywhere.
  TIGHTWIRE_INLINE Lanes(T value) { fill(*this, value); }
  /// Not a constructor: g++ takes the vector type for T until T is known.
  template <class V>
  TIGHTWIRE_INLINE static Lanes of(const V& vector) {
    Lanes x;
    x.v = vector;
    return x;
  }

  TIGHTWIRE_INLINE static Lanes load(const void* from) {
    Lanes x;
    std::memcpy(&x.v, from, sizeof x.v);
    return x;
  }
  TIGHTWIRE_INLINE void store(void* to) const { std::memcpy(to, &v, sizeof v); }

  TIGHTWIRE_INLINE friend Lanes operator+(const Lanes& a, const Lanes& b) { return of(a.v + b.v); }
  TIGHTWIRE_INLINE friend Lanes operator-(const Lanes& a, const Lanes& b) { return of(a.v - b.v); }
  TIGHTWIRE_INLINE friend Lanes operator*(const Lanes& a, const Lanes& b) { return of(a.v * b.v); }
  TIGHTWIRE_INLINE friend Lanes operator/(const Lanes& a, const Lanes& b) { return of(a.v / b.v); }
  TIGHTWIRE_INLINE friend Lanes operator&(const Lanes& a, const Lanes& b) { return of(a.v & b.v); }
  TIGHTWIRE_INLINE friend Lanes operator|(const Lanes& a, const Lanes& b) { return of(a.v | b.v); }
  TIGHTWIRE_INLINE friend Lanes operator^(const Lanes& a, const Lanes& b) { return of(a.v ^ b.v); }
  TIGHTWIRE_INLINE friend Lanes operator~(const Lanes& a) { return of(~a.v); }
  TIGHTWIRE_INLINE friend Lanes operator<<(const Lanes& a, int by) { return of(a.v << by); }
  TIGHTWIRE_INLINE friend Lanes operator>>(const Lanes& a, int by) { return of(a.v >> by); }

  /// Comparisons give a mask for `select`: all bits set where true.
  using Mask = Lanes<int, W>;
  TIGHTWIRE_INLINE friend Mask operator<(const Lanes& a, const Lanes& b) { return Mask::of(a.v < b.v); }
  TIGHTWIRE_INLINE friend Mask operator>(const Lanes& a, const Lanes& b) { return Mask::of(a.v > b.v); }
  TIGHTWIRE_INLINE friend Mask operator==(const Lanes& a, const Lanes& b) { return Mask::of(a.v == b.v); }
  TIGHTWIRE_INLINE friend Mask operator>=(const Lanes& a, const Lanes& b) { return Mask::of(a.v >= b.v); }

  TIGHTWIRE_INLINE friend Lanes select(const Mask& mask, const Lanes& a, const Lanes& b) {
    return of(mask.v ? a.v : b.v);
  }
  TIGHTWIRE_INLINE friend Lanes least(const Lanes& a, const Lanes& b) { return of(a.v < b.v ? a.v : b.v); }
  TIGHTWIRE_INLINE friend Lanes greatest(const Lanes& a, const Lanes& b) { return of(a.v > b.v ? a.v : b.v); }
};

/// By an OR of bits, which g++ 12 turns into a broadcast; given a list of equal elements it stores them one by one.
template <class T, int W>
TIGHTWIRE_INLINE void fill(Lanes<T, W>& x, T value) {
  typedef int Bits __attribute__((vector_size(sizeof(T) * W)));
  Bits bits{};
  bits |= __builtin_bit_cast(int, value);
  x.v = (typename Lanes<T, W>::Vector)bits;
}

template <class To, class T, int W>
TIGHTWIRE_INLINE Lanes<To, W> reinterpret(const Lanes<T, W>& x) {
  return Lanes<To, W>::of((typename Lanes<To, W>::Vector)x.v);
}
template <int W>
TIGHTWIRE_INLINE Lanes<std::uint32_t, W> to_bits(const Lanes<float, W>& x) {
  return reinterpret<std::uint32_t>(x);
}
template <int W>
TIGHTWIRE_INLINE Lanes<float, W> from_bits(const Lanes<std::uint32_t, W>& x) {
  return reinterpret<float>(x);
}
template <int W>
TIGHTWIRE_INLINE Lanes<int, W> as_int(const Lanes<std::uint32_t, W>& x) {
  return reinterpret<int>(x);
}
template <int W>
TIGHTWIRE_INLINE Lanes<std::uint32_t, W> as_unsigned(const Lanes<int, W>& x) {
  return reinterpret<std::uint32_t>(x);
}
template <int W>
TIGHTWIRE_INLINE Lanes<float, W> to_float(const Lanes<int, W>& x) {
  return Lanes<float, W>::of(__builtin_convertvector(x.v, typename Lanes<float, W>::Vector));
}

/// The largest of all lanes.
template <class T>
TIGHTWIRE_INLINE T largest_lane(const Lanes<T, 4>& all) {
  const Lanes<T, 4> x = greatest(all, Lanes<T, 4>::of(__builtin_shufflevector(all.v, all.v, 2, 3, 0, 1)));
  return greatest(x, Lanes<T, 4>::of(__builtin_shufflevector(x.v, x.v, 1, 0, 3, 2))).v[0];
}
template <class T>
TIGHTWIRE_INLINE T largest_lane(const Lanes<T, 8>& x) {
  return largest_lane(greatest(Lanes<T, 4>::of(__builtin_shufflevector(x.v, x.v, 0, 1, 2, 3)),
                               Lanes<T, 4>::of(__builtin_shufflevector(x.v, x.v, 4, 5, 6, 7))));
}
template <class T>
TIGHTWIRE_INLINE T largest_lane(const Lanes<T, 16>& x) {
  return largest_lane(greatest(Lanes<T, 8>::of(__builtin_shufflevector(x.v, x.v, 0, 1, 2, 3, 4, 5, 6, 7)),
                               Lanes<T, 8>::of(__builtin_shufflevector(x.v, x.v, 8, 9, 10, 11, 12, 13, 14, 15))));
}

/// x -= a * b, of products that fp32 holds exactly, so that rounding once is the same as rounding twice.
template <int W>
TIGHTWIRE_INLINE void subtract_exact_product(Lanes<float, W>& x, const Lanes<float, W>& a, const Lanes<float, W>& b) {
  x = x - a * b;
}
/// sum += a * b, rounded once, as by an instruction that fuses both, whether there is one or not.
template <int W>
TIGHTWIRE_INLINE void add_fused_product(Lanes<float, W>& sum, const Lanes<float, W>& a, const Lanes<float, W>& b) {
  for (int i = 0; i < W; ++i) sum.v[i] = __builtin_fmaf(a.v[i], b.v[i], sum.v[i]);
}
/// Lets no magnitude in x be above `limit`. Something within where x is NaN.
template <int W>
TIGHTWIRE_INLINE void clamp_magnitude(Lanes<float, W>& x, const Lanes<float, W>& limit) {
  x = greatest(least(x, limit), Lanes<float, W>(0.0f) - limit);
}
/// The nearest integer of |x| < 2^22, ties to even, and the same as a float; something where x is NaN.
template <int W>
TIGHTWIRE_INLINE void nearest_integer(const Lanes<float, W>& x, Lanes<int, W>& integer, Lanes<float, W>& whole) {
  const Lanes<float, W> shift(0x1.8p23f), shifted = x + shift;
  integer = as_int(to_bits(shifted)) - as_int(to_bits(shift));
  whole = shifted - shift;
}
/// The even elements of x times m, 64 bits each, the lower half in the even element.
template <int W>
TIGHTWIRE_INLINE void multiply_even(const Lanes<std::uint32_t, W>& x, std::uint32_t m,
                                    Lanes<std::uint32_t, W>& products) {
  for (int i = 0; i < W; i += 2) {
    const std::uint64_t product = std::uint64_t{x.v[i]} * m;
    products.v[i] = static_cast<std::uint32_t>(product);
    products.v[i + 1] = static_cast<std::uint32_t>(product >> 32);
  }
}
/// The odd elements, in the even places; what is in the odd ones may be anything.
template <int W>
TIGHTWIRE_INLINE void odd_to_even(const Lanes<std::uint32_t, W>& x, Lanes<std::uint32_t, W>& odd) {
  for (int i = 0; i < W; i += 2) odd.v[i] = odd.v[i + 1] = x.v[i + 1];
}
/// The even elements of both in turn.
template <int W>
TIGHTWIRE_INLINE void join_even(const Lanes<std::uint32_t, W>& even, const Lanes<std::uint32_t, W>& odd,
                                Lanes<std::uint32_t, W>& joined) {
  for (int i = 0; i < W; i += 2) joined.v[i] = even.v[i], joined.v[i + 1] = odd.v[i];
}
/// Rounds x here and now: no compiler may contract the product it came from with what is added to it.
template <int W>
TIGHTWIRE_INLINE void settle(Lanes<float, W>& x) {
  asm("" : "+m"(x.v));
}
/// Asks for a line that will be read, or written, before long. Any address will do.
TIGHTWIRE_INLINE void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }
TIGHTWIRE_INLINE void prefetch_to_write(const void* at) { __builtin_prefetch(at, 1, 3); }
/// Stores without reading the line first and without keeping it in cache. `to` is aligned to the lanes.
template <int W>
TIGHTWIRE_INLINE void store_past_cache(const Lanes<float, W>& x, float* to) {
  x.store(to);
}

}  // namespace tightwire::detail

#if defined(__x86_64__)
#include <tightwire/detail/lanes_x86.hpp>
#else
namespace tightwire::detail {
inline void copy_past_cache(const std::byte* from, std::byte* to, int bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
inline void order_stores_past_cache() {}
}  // namespace tightwire::detail
#endif
