#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include <tightwire/detail/lanes.hpp>

// What x86 has single instructions for, and no compiler finds. As in pack_x86.hpp these have a target and are no
// always_inline, and return nothing: how a wide vector is returned depends on the flags of the file in clang.

namespace tightwire::detail {

// Of a constant, g++ 12 fills a register as wide as these lane by lane, in moves that wait for each other, when it does
// not know from the function itself that there are such registers.
template <class T>
TIGHTWIRE_TARGET_AVX2 inline void fill(Lanes<T, 8>& x, T value) {
  x.v = (typename Lanes<T, 8>::Vector)_mm256_set1_epi32(__builtin_bit_cast(int, value));
}
template <class T>
TIGHTWIRE_TARGET_AVX512 inline void fill(Lanes<T, 16>& x, T value) {
  x.v = (typename Lanes<T, 16>::Vector)_mm512_set1_epi32(__builtin_bit_cast(int, value));
}

TIGHTWIRE_TARGET_AVX2 inline void subtract_exact_product(Lanes<float, 8>& x, const Lanes<float, 8>& a,
                                                         const Lanes<float, 8>& b) {
  x.v = _mm256_fnmadd_ps(a.v, b.v, x.v);
}
TIGHTWIRE_TARGET_AVX512 inline void subtract_exact_product(Lanes<float, 16>& x, const Lanes<float, 16>& a,
                                                           const Lanes<float, 16>& b) {
  x.v = _mm512_fnmadd_ps(a.v, b.v, x.v);
}

TIGHTWIRE_TARGET_AVX2 inline void add_fused_product(Lanes<float, 8>& sum, const Lanes<float, 8>& a,
                                                    const Lanes<float, 8>& b) {
  sum.v = (decltype(sum.v))_mm256_fmadd_ps((__m256)a.v, (__m256)b.v, (__m256)sum.v);
}
TIGHTWIRE_TARGET_AVX512 inline void add_fused_product(Lanes<float, 16>& sum, const Lanes<float, 16>& a,
                                                      const Lanes<float, 16>& b) {
  sum.v = (decltype(sum.v))_mm512_fmadd_ps((__m512)a.v, (__m512)b.v, (__m512)sum.v);
}
/// Of two: a double holds the product, and the sum to 53 bits. Where those that fp32 has no room for are all the same
/// but the first, as halfway between two floats, rounding twice could differ from rounding once: there the sum is
/// rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Comput. 57, 2008).
inline __m128d sum_to_odd(__m128d product, __m128d addend, __m128d sum) {
  // What rounding to double took away, exactly (Knuth).
  const __m128d part = _mm_sub_pd(sum, product);
  const __m128d rest = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, part)), _mm_sub_pd(addend, part));
  const __m128i one = _mm_set1_epi64x(1), bits = _mm_castpd_si128(sum);
  const __m128i inexact =
      _mm_castpd_si128(_mm_and_pd(_mm_cmpneq_pd(rest, _mm_setzero_pd()), _mm_cmpord_pd(rest, rest)));
  const __m128i even = _mm_and_si128(_mm_andnot_si128(bits, one), inexact);
  // One further from zero where the rest has the sign of the sum, one nearer where it has not.
  const __m128i apart = _mm_srli_epi64(_mm_xor_si128(bits, _mm_castpd_si128(rest)), 63);
  const __m128i back = _mm_slli_epi64(_mm_and_si128(even, apart), 1);
  return _mm_castsi128_pd(_mm_sub_epi64(_mm_add_epi64(bits, even), back));
}
inline void add_fused_product(Lanes<float, 4>& sum, const Lanes<float, 4>& a, const Lanes<float, 4>& b) {
  const auto upper = [](__m128 x) { return _mm_cvtps_pd(_mm_movehl_ps(x, x)); };
  const __m128 x = (__m128)sum.v;
  const __m128d products[2] = {_mm_mul_pd(_mm_cvtps_pd((__m128)a.v), _mm_cvtps_pd((__m128)b.v)),
                               _mm_mul_pd(upper((__m128)a.v), upper((__m128)b.v))};
  const __m128d addends[2] = {_mm_cvtps_pd(x), upper(x)};
  __m128d sums[2] = {_mm_add_pd(products[0], addends[0]), _mm_add_pd(products[1], addends[1])};
  // Seldom any: of the lower bits of all four, but for the first that fp32 has no room for.
  const __m128i low = _mm_castps_si128(_mm_shuffle_ps(_mm_castpd_ps(sums[0]), _mm_castpd_ps(sums[1]), 0x88));
  const __m128i none = _mm_cmpeq_epi32(_mm_slli_epi32(low, 4), _mm_setzero_si128());
  if (_mm_movemask_ps(_mm_castsi128_ps(none)) != 0) [[unlikely]]
    for (int i = 0; i < 2; ++i) sums[i] = sum_to_odd(products[i], addends[i], sums[i]);
  sum.v = (decltype(sum.v))_mm_movelh_ps(_mm_cvtpd_ps(sums[0]), _mm_cvtpd_ps(sums[1]));
}

TIGHTWIRE_TARGET_AVX512 inline void clamp_magnitude(Lanes<float, 16>& x, const Lanes<float, 16>& limit) {
  // The lesser magnitude, with the sign of x.
  x.v = _mm512_maskz_range_ps(0xffff, x.v, limit.v, 0x02);
}

// The conversions round as additions do, and give the integer that would take a subtraction more.
inline void nearest_integer(const Lanes<float, 4>& x, Lanes<int, 4>& integer, Lanes<float, 4>& whole) {
  const __m128i nearest = _mm_cvtps_epi32(x.v);
  integer.v = (decltype(integer.v))nearest;
  whole.v = _mm_cvtepi32_ps(nearest);
}
TIGHTWIRE_TARGET_AVX2 inline void nearest_integer(const Lanes<float, 8>& x, Lanes<int, 8>& integer,
                                                  Lanes<float, 8>& whole) {
  const __m256i nearest = _mm256_cvtps_epi32(x.v);
  integer.v = (decltype(integer.v))nearest;
  whole.v = _mm256_cvtepi32_ps(nearest);
}
TIGHTWIRE_TARGET_AVX512 inline void nearest_integer(const Lanes<float, 16>& x, Lanes<int, 16>& integer,
                                                    Lanes<float, 16>& whole) {
  const __m512i nearest = _mm512_maskz_cvtps_epi32(0xffff, x.v);
  integer.v = (decltype(integer.v))nearest;
  whole.v = _mm512_maskz_cvtepi32_ps(0xffff, nearest);
}

inline void multiply_even(const Lanes<std::uint32_t, 4>& x, std::uint32_t m, Lanes<std::uint32_t, 4>& products) {
  products.v = (decltype(products.v))_mm_mul_epu32((__m128i)x.v, _mm_set1_epi32(static_cast<int>(m)));
}
TIGHTWIRE_TARGET_AVX2 inline void multiply_even(const Lanes<std::uint32_t, 8>& x, std::uint32_t m,
                                                Lanes<std::uint32_t, 8>& products) {
  products.v = (decltype(products.v))_mm256_mul_epu32((__m256i)x.v, _mm256_set1_epi32(static_cast<int>(m)));
}
TIGHTWIRE_TARGET_AVX512 inline void multiply_even(const Lanes<std::uint32_t, 16>& x, std::uint32_t m,
                                                  Lanes<std::uint32_t, 16>& products) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(m));
  products.v = (decltype(products.v))_mm512_maskz_mul_epu32(0xff, (__m512i)x.v, factor);
}
inline void odd_to_even(const Lanes<std::uint32_t, 4>& x, Lanes<std::uint32_t, 4>& odd) {
  odd.v = (decltype(odd.v))_mm_shuffle_epi32((__m128i)x.v, 0xf5);
}
TIGHTWIRE_TARGET_AVX2 inline void odd_to_even(const Lanes<std::uint32_t, 8>& x, Lanes<std::uint32_t, 8>& odd) {
  odd.v = (decltype(odd.v))_mm256_shuffle_epi32((__m256i)x.v, 0xf5);
}
TIGHTWIRE_TARGET_AVX512 inline void odd_to_even(const Lanes<std::uint32_t, 16>& x, Lanes<std::uint32_t, 16>& odd) {
  odd.v = (decltype(odd.v))_mm512_maskz_shuffle_epi32(0xffff, (__m512i)x.v, _MM_PERM_DDBB);
}
inline void join_even(const Lanes<std::uint32_t, 4>& even, const Lanes<std::uint32_t, 4>& odd,
                      Lanes<std::uint32_t, 4>& joined) {
  const __m128i even_mask = _mm_set1_epi64x(0xffffffff);
  joined.v =
      (decltype(joined.v))_mm_or_si128(_mm_and_si128((__m128i)even.v, even_mask), _mm_slli_epi64((__m128i)odd.v, 32));
}
TIGHTWIRE_TARGET_AVX2 inline void join_even(const Lanes<std::uint32_t, 8>& even, const Lanes<std::uint32_t, 8>& odd,
                                            Lanes<std::uint32_t, 8>& joined) {
  joined.v = (decltype(joined.v))_mm256_blend_epi32((__m256i)even.v, _mm256_shuffle_epi32((__m256i)odd.v, 0xa0), 0xaa);
}
TIGHTWIRE_TARGET_AVX512 inline void join_even(const Lanes<std::uint32_t, 16>& even, const Lanes<std::uint32_t, 16>& odd,
                                              Lanes<std::uint32_t, 16>& joined) {
  joined.v = (decltype(joined.v))_mm512_mask_shuffle_epi32((__m512i)even.v, 0xaaaa, (__m512i)odd.v, _MM_PERM_CCAA);
}

TIGHTWIRE_INLINE void settle(Lanes<float, 4>& x) { asm("" : "+x"(x.v)); }
TIGHTWIRE_TARGET_AVX2 inline void settle(Lanes<float, 8>& x) { asm("" : "+x"(x.v)); }
TIGHTWIRE_TARGET_AVX512 inline void settle(Lanes<float, 16>& x) { asm("" : "+v"(x.v)); }

inline void store_past_cache(const Lanes<float, 4>& x, float* to) { _mm_stream_ps(to, x.v); }
TIGHTWIRE_TARGET_AVX2 inline void store_past_cache(const Lanes<float, 8>& x, float* to) { _mm256_stream_ps(to, x.v); }
TIGHTWIRE_TARGET_AVX512 inline void store_past_cache(const Lanes<float, 16>& x, float* to) {
  _mm512_stream_ps(to, x.v);
}
/// A multiple of 16 bytes, to where such a multiple begins.
inline void copy_past_cache(const std::byte* from, std::byte* to, int bytes) {
  TIGHTWIRE_UNROLL(16)
  for (int i = 0; i < bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
}
inline void order_stores_past_cache() { _mm_sfence(); }

}  // namespace tightwire::detail
