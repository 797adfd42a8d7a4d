#pragma once
#include <immintrin.h>

#include <cstddef>

#include <tightwire/detail/lanes.hpp>

// What x86 has single instructions for, and no compiler finds. As in pack_x86.hpp these have a target and are no
// always_inline, and return nothing: how a wide vector is returned depends on the flags of the file in clang.

namespace tightwire::detail {

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
