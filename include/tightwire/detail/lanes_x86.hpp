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

// The even elements by themselves, and the odd ones moved down.
inline void multiply_wide(const Lanes<std::uint32_t, 4>& x, std::uint32_t m, Lanes<std::uint32_t, 4>& high,
                          Lanes<std::uint32_t, 4>& low) {
  const __m128i factor = _mm_set1_epi32(static_cast<int>(m)),
                odd_mask = _mm_set1_epi64x(static_cast<long long>(0xffffffff00000000u));
  const __m128i even = _mm_mul_epu32((__m128i)x.v, factor),
                odd = _mm_mul_epu32(_mm_srli_epi64((__m128i)x.v, 32), factor);
  low.v = (decltype(low.v))_mm_or_si128(_mm_andnot_si128(odd_mask, even), _mm_slli_epi64(odd, 32));
  high.v = (decltype(high.v))_mm_or_si128(_mm_srli_epi64(even, 32), _mm_and_si128(odd_mask, odd));
}
TIGHTWIRE_TARGET_AVX2 inline void multiply_wide(const Lanes<std::uint32_t, 8>& x, std::uint32_t m,
                                                Lanes<std::uint32_t, 8>& high, Lanes<std::uint32_t, 8>& low) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(m));
  const __m256i even = _mm256_mul_epu32((__m256i)x.v, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x.v, 32), factor);
  low.v = (decltype(low.v))_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high.v = (decltype(high.v))_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
TIGHTWIRE_TARGET_AVX512 inline void multiply_wide(const Lanes<std::uint32_t, 16>& x, std::uint32_t m,
                                                  Lanes<std::uint32_t, 16>& high, Lanes<std::uint32_t, 16>& low) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(m));
  const __m512i even = _mm512_maskz_mul_epu32(0xff, (__m512i)x.v, factor);
  const __m512i odd = _mm512_maskz_mul_epu32(0xff, _mm512_maskz_srli_epi64(0xff, (__m512i)x.v, 32), factor);
  low.v = (decltype(low.v))_mm512_mask_blend_epi32(0xaaaa, even, _mm512_maskz_slli_epi64(0xff, odd, 32));
  high.v = (decltype(high.v))_mm512_mask_blend_epi32(0xaaaa, _mm512_maskz_srli_epi64(0xff, even, 32), odd);
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
