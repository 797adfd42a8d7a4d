#pragma once
#include <immintrin.h>

#include <cstddef>

#include <tightwire/detail/lanes.hpp>
#include <tightwire/detail/pack.hpp>

// The packing of pack.hpp in instructions: g++ 12 and clang 14 find none of these in portable code, which costs up to a
// factor of four. They pack with saturation: codes of 8 bits must be in range.
//
// These functions have a target and are no always_inline, since their callers get theirs only by being inlined
// themselves. Arguments and results go by reference, so that a call that does stay one is the same under every
// instruction set. The forms with a mask of ones are the plain instructions without g++ 12's false warning of something
// uninitialized.

namespace tightwire::detail {

inline __m128i pack_bytes(const FourLanes<4>& x) {
  const __m128i low = _mm_packs_epi32((__m128i)x[0].v, (__m128i)x[1].v);
  return _mm_packs_epi16(low, _mm_packs_epi32((__m128i)x[2].v, (__m128i)x[3].v));
}
inline void narrow_to_8(const FourLanes<4>& x, std::byte* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), pack_bytes(x));
}
inline void narrow_to_16(const FourLanes<4>& x, std::byte* to) {
  TIGHTWIRE_UNROLL(2) for (int i = 0; i < 2; ++i) {
    // Sign-extended from 16 bits, the only form that SSE2 packs without saturating.
    const __m128i low = _mm_srai_epi32(_mm_slli_epi32((__m128i)x[2 * i].v, 16), 16);
    const __m128i high = _mm_srai_epi32(_mm_slli_epi32((__m128i)x[2 * i + 1].v, 16), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), _mm_packs_epi32(low, high));
  }
}
inline void unpack_bytes(__m128i bytes, FourLanes<4>& x) {
  const __m128i low = _mm_unpacklo_epi8(bytes, bytes), high = _mm_unpackhi_epi8(bytes, bytes);
  x[0] = Lanes<int, 4>::of((Lanes<int, 4>::Vector)_mm_srai_epi32(_mm_unpacklo_epi16(low, low), 24));
  x[1] = Lanes<int, 4>::of((Lanes<int, 4>::Vector)_mm_srai_epi32(_mm_unpackhi_epi16(low, low), 24));
  x[2] = Lanes<int, 4>::of((Lanes<int, 4>::Vector)_mm_srai_epi32(_mm_unpacklo_epi16(high, high), 24));
  x[3] = Lanes<int, 4>::of((Lanes<int, 4>::Vector)_mm_srai_epi32(_mm_unpackhi_epi16(high, high), 24));
}
inline void widen_from_8(const std::byte* from, FourLanes<4>& x) {
  unpack_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), x);
}
inline void widen_from_16(const std::byte* from, FourLanes<4>& x) {
  TIGHTWIRE_UNROLL(2) for (int i = 0; i < 2; ++i) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
    x[2 * i] = Lanes<int, 4>::of((Lanes<int, 4>::Vector)_mm_unpacklo_epi16(words, _mm_setzero_si128()));
    x[2 * i + 1] = Lanes<int, 4>::of((Lanes<int, 4>::Vector)_mm_unpackhi_epi16(words, _mm_setzero_si128()));
  }
}

TIGHTWIRE_TARGET_AVX2 inline void pack_bytes(const FourLanes<8>& x, __m256i& packed) {
  const __m256i low = _mm256_packs_epi32((__m256i)x[0].v, (__m256i)x[1].v);
  const __m256i bytes = _mm256_packs_epi16(low, _mm256_packs_epi32((__m256i)x[2].v, (__m256i)x[3].v));
  packed = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
TIGHTWIRE_TARGET_AVX2 inline void narrow_to_8(const FourLanes<8>& x, std::byte* to) {
  __m256i bytes;
  pack_bytes(x, bytes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}
TIGHTWIRE_TARGET_AVX2 inline void narrow_to_8(const Lanes<int, 8> (&x)[2], std::byte* to) {
  const __m256i words = _mm256_packs_epi32((__m256i)x[0].v, (__m256i)x[1].v);
  const __m256i bytes = _mm256_packs_epi16(words, words);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}
TIGHTWIRE_TARGET_AVX2 inline void narrow_to_16(const FourLanes<8>& x, std::byte* to) {
  const __m256i low16 = _mm256_set1_epi32(0xffff);
  TIGHTWIRE_UNROLL(2) for (int i = 0; i < 2; ++i) {
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256((__m256i)x[2 * i].v, low16),
                                              _mm256_and_si256((__m256i)x[2 * i + 1].v, low16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * i), _mm256_permute4x64_epi64(words, 0xd8));
  }
}
template <int N>
TIGHTWIRE_TARGET_AVX2 inline void widen_from_8(const std::byte* from, Lanes<int, 8> (&x)[N]) {
  TIGHTWIRE_UNROLL(4) for (int i = 0; i < N; ++i) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * i));
    x[i] = Lanes<int, 8>::of((Lanes<int, 8>::Vector)_mm256_cvtepi8_epi32(bytes));
  }
}
TIGHTWIRE_TARGET_AVX2 inline void widen_from_16(const std::byte* from, FourLanes<8>& x) {
  TIGHTWIRE_UNROLL(4) for (int i = 0; i < 4; ++i) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
    x[i] = Lanes<int, 8>::of((Lanes<int, 8>::Vector)_mm256_cvtepu16_epi32(words));
  }
}

TIGHTWIRE_TARGET_AVX512 inline void narrow_to_8(const FourLanes<16>& x, std::byte* to) {
  // One instruction for two registers, where those that take low bits are two or three each.
  const __m512i low = _mm512_packs_epi32((__m512i)x[0].v, (__m512i)x[1].v);
  const __m512i bytes = _mm512_packs_epi16(low, _mm512_packs_epi32((__m512i)x[2].v, (__m512i)x[3].v));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi32(0xffff, order, bytes));
}
TIGHTWIRE_TARGET_AVX512 inline void narrow_to_8(const Lanes<int, 16> (&x)[1], std::byte* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)x[0].v));
}
TIGHTWIRE_TARGET_AVX512 inline void narrow_to_16(const FourLanes<16>& x, std::byte* to) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < 4; ++i)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * i), _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)x[i].v));
}
TIGHTWIRE_TARGET_AVX512 inline void upper_halves(const FourLanes<16>& x, std::byte* to) {
  const __m512i high_words = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,  //
                                              31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  TIGHTWIRE_UNROLL(2)
  for (int i = 0; i < 2; ++i)
    _mm512_storeu_si512(to + 64 * i,
                        _mm512_permutex2var_epi16((__m512i)x[2 * i].v, high_words, (__m512i)x[2 * i + 1].v));
}
template <int N>
TIGHTWIRE_TARGET_AVX512 inline void widen_from_8(const std::byte* from, Lanes<int, 16> (&x)[N]) {
  TIGHTWIRE_UNROLL(4) for (int i = 0; i < N; ++i) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
    x[i] = Lanes<int, 16>::of((Lanes<int, 16>::Vector)_mm512_maskz_cvtepi8_epi32(0xffff, bytes));
  }
}
TIGHTWIRE_TARGET_AVX512 inline void widen_from_16(const std::byte* from, FourLanes<16>& x) {
  TIGHTWIRE_UNROLL(4) for (int i = 0; i < 4; ++i) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
    x[i] = Lanes<int, 16>::of((Lanes<int, 16>::Vector)_mm512_maskz_cvtepu16_epi32(0xffff, words));
  }
}

}  // namespace tightwire::detail
