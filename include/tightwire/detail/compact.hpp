#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tightwire/detail/bits.hpp>
#include <tightwire/detail/lanes.hpp>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Appending those of W elements whose magnitude reaches a threshold, in order. Magnitudes are compared as integers, the
// bits of |x|: NaN is above infinity, which is above every number. Room for W elements more must be there.

namespace tightwire::detail {

/// Writes elements with |x| >= threshold and their places `at`; returns how many.
template <int W>
TIGHTWIRE_INLINE std::size_t append_large(const Lanes<float, W>& x, const Lanes<std::uint32_t, W>& at,
                                          std::uint32_t threshold, float* values, std::uint32_t* places) {
  std::size_t found = 0;
  for (int i = 0; i < W; ++i) {
    values[found] = x.v[i];
    places[found] = at.v[i];
    found += (to_bits(x.v[i]) & kMagnitudeMask) >= threshold ? 1 : 0;
  }
  return found;
}

/// The same where most are as large.
template <int W>
TIGHTWIRE_INLINE std::size_t append_many(const Lanes<float, W>& x, const Lanes<std::uint32_t, W>& at,
                                         std::uint32_t threshold, float* values, std::uint32_t* places) {
  return append_large(x, at, threshold, values, places);
}

/// Which of several have |x| >= threshold, the first in the lowest bit.
template <int W>
TIGHTWIRE_INLINE std::uint64_t large_set(const Lanes<float, W> (&x)[4], std::uint32_t threshold) {
  std::uint64_t set = 0;
  for (int i = 0; i < 4 * W; ++i)
    set |= std::uint64_t{(to_bits(x[i / W].v[i % W]) & kMagnitudeMask) >= threshold ? 1u : 0u} << i;
  return set;
}

/// Appends `first` + the places of the ones in a set, in order; returns how many. Seldom more than three.
TIGHTWIRE_INLINE std::size_t append_set(std::uint64_t set, std::uint32_t first, std::uint32_t* places) {
  const auto found = static_cast<std::size_t>(std::popcount(set));
  TIGHTWIRE_UNROLL(3)
  for (int i = 0; i < 3; ++i, set &= set - 1) places[i] = first + static_cast<std::uint32_t>(std::countr_zero(set));
  if (found > 3) [[unlikely]]
    for (std::size_t i = 3; i < found; ++i, set &= set - 1)
      places[i] = first + static_cast<std::uint32_t>(std::countr_zero(set));
  return found;
}

/// Elements to be fetched by place, the first of which is place `first`. Those with a magnitude of at least `taken` are
/// 0 in `rest` then, unless that is null.
struct Fetched {
  const float* from;
  float* rest;
  std::uint32_t first;
  std::uint32_t taken;
};
/// Fetches the elements at these places. Room for 16 more values must be there.
template <int W>
TIGHTWIRE_INLINE void fetch_large(const Lanes<float, W>&, const Fetched& of, std::span<const std::uint32_t> places,
                                  float* values) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    const float x = of.from[places[i] - of.first];
    values[i] = x;
    if (of.rest != nullptr) of.rest[places[i] - of.first] = (to_bits(x) & kMagnitudeMask) >= of.taken ? 0.0f : x;
  }
}

/// x, with zeros in place of those whose magnitude reaches `from`; 0x80000000 is above all.
template <int W>
TIGHTWIRE_INLINE void clear_large(Lanes<float, W>& x, std::uint32_t from) {
  const Lanes<int, W> magnitude = as_int(to_bits(x) & Lanes<std::uint32_t, W>(kMagnitudeMask));
  x = select(magnitude > Lanes<int, W>(static_cast<int>(from - 1)), Lanes<float, W>(0.0f), x);
}

/// Where magnitudes lie that are compared with a band.
struct BandCount {
  std::size_t above = 0, inside = 0;
};
/// Writes the places `at` of elements with low <= |x| < high behind each other, and counts them and those above. A
/// `high` of 0x80000000 is above all; `low` is at least 1.
template <int W>
TIGHTWIRE_INLINE void append_band(const Lanes<float, W>& x, const Lanes<std::uint32_t, W>& at, std::uint32_t low,
                                  std::uint32_t high, std::uint32_t* places, BandCount& found) {
  for (int i = 0; i < W; ++i) {
    const std::uint32_t magnitude = to_bits(x.v[i]) & kMagnitudeMask;
    places[found.inside] = at.v[i];
    found.above += magnitude >= high ? 1 : 0;
    found.inside += magnitude >= low && magnitude < high ? 1 : 0;
  }
}

/// Whether any of several has |x| >= threshold. Mostly none has, and to look at them one by one costs more than to read
/// them.
template <int W>
TIGHTWIRE_INLINE bool any_large(const Lanes<float, W> (&x)[4], std::uint32_t threshold) {
  Lanes<int, W> most(0);
  TIGHTWIRE_UNROLL(4)
  for (int k = 0; k < 4; ++k) most = greatest(most, as_int(to_bits(x[k]) & Lanes<std::uint32_t, W>(kMagnitudeMask)));
  return static_cast<std::uint32_t>(largest_lane(most)) >= threshold;
}

#if defined(__x86_64__)
/// For every set of eight lanes, which of them come first.
struct CompactTable {
  std::uint32_t lanes[256][8];
};
constexpr CompactTable make_compact_table() {
  CompactTable table{};
  for (unsigned set = 0; set < 256; ++set) {
    unsigned found = 0;
    for (std::uint32_t lane = 0; lane < 8; ++lane)
      if ((set >> lane & 1u) != 0) table.lanes[set][found++] = lane;
  }
  return table;
}
inline constexpr CompactTable kCompactTable = make_compact_table();

TIGHTWIRE_TARGET_AVX2 inline std::size_t append_large(const Lanes<float, 8>& x, const Lanes<std::uint32_t, 8>& at,
                                                      std::uint32_t threshold, float* values, std::uint32_t* places) {
  const __m256i magnitude = _mm256_and_si256((__m256i)x.v, _mm256_set1_epi32(static_cast<int>(kMagnitudeMask)));
  const __m256i large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(threshold) - 1));
  const auto set = static_cast<unsigned>(_mm256_movemask_ps((__m256)large));
  const __m256i order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kCompactTable.lanes[set]));
  _mm256_storeu_ps(values, _mm256_permutevar8x32_ps((__m256)x.v, order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(places), _mm256_permutevar8x32_epi32((__m256i)at.v, order));
  return static_cast<std::size_t>(__builtin_popcount(set));
}
inline std::uint64_t large_set(const Lanes<float, 4> (&x)[4], std::uint32_t threshold) {
  std::uint64_t set = 0;
  TIGHTWIRE_UNROLL(4)
  for (int k = 0; k < 4; ++k) {
    const __m128i magnitude = _mm_and_si128((__m128i)x[k].v, _mm_set1_epi32(static_cast<int>(kMagnitudeMask)));
    const __m128i large = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(static_cast<int>(threshold) - 1));
    set |= std::uint64_t{static_cast<unsigned>(_mm_movemask_ps((__m128)large))} << (4 * k);
  }
  return set;
}
TIGHTWIRE_TARGET_AVX2 inline std::uint64_t large_set(const Lanes<float, 8> (&x)[4], std::uint32_t threshold) {
  std::uint64_t set = 0;
  TIGHTWIRE_UNROLL(4)
  for (int k = 0; k < 4; ++k) {
    const __m256i magnitude = _mm256_and_si256((__m256i)x[k].v, _mm256_set1_epi32(static_cast<int>(kMagnitudeMask)));
    const __m256i large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(threshold) - 1));
    set |= std::uint64_t{static_cast<unsigned>(_mm256_movemask_ps((__m256)large))} << (8 * k);
  }
  return set;
}
TIGHTWIRE_TARGET_AVX2 inline void append_band(const Lanes<float, 8>& x, const Lanes<std::uint32_t, 8>& at,
                                              std::uint32_t low, std::uint32_t high, std::uint32_t* places,
                                              BandCount& found) {
  const __m256i magnitude = _mm256_and_si256((__m256i)x.v, _mm256_set1_epi32(static_cast<int>(kMagnitudeMask)));
  const __m256i reach = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(low - 1)));
  const __m256i above = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(high - 1)));
  const auto set = static_cast<unsigned>(_mm256_movemask_ps((__m256)_mm256_andnot_si256(above, reach)));
  const __m256i order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kCompactTable.lanes[set]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + found.inside),
                      _mm256_permutevar8x32_epi32((__m256i)at.v, order));
  found.inside += static_cast<std::size_t>(__builtin_popcount(set));
  found.above += static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps((__m256)above))));
}
TIGHTWIRE_TARGET_AVX512 inline void clear_large(Lanes<float, 16>& x, std::uint32_t from) {
  const __m512i magnitude = _mm512_and_si512((__m512i)x.v, _mm512_set1_epi32(static_cast<int>(kMagnitudeMask)));
  const __mmask16 stays = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(from)));
  x.v = (decltype(x.v))_mm512_maskz_mov_ps(stays, (__m512)x.v);
}
/// The sixteen lanes of a mask as bits. GCC 12 keeps a mask it has widened in sixteen bits of the stack when registers
/// are short, and reads 32 of them back; not where the general register is given it.
TIGHTWIRE_TARGET_AVX512 inline std::uint32_t bits_of(__mmask16 mask) {
  std::uint32_t bits;
  asm("kmovw %1, %0" : "=r"(bits) : "k"(mask));
  return bits;
}
TIGHTWIRE_TARGET_AVX512 inline std::size_t lanes_in(__mmask16 mask) {
  return static_cast<std::size_t>(__builtin_popcount(bits_of(mask)));
}
TIGHTWIRE_TARGET_AVX512 inline std::uint64_t large_set(const Lanes<float, 16> (&x)[4], std::uint32_t threshold) {
  std::uint64_t set = 0;
  TIGHTWIRE_UNROLL(4)
  for (int k = 0; k < 4; ++k) {
    const __m512i magnitude = _mm512_and_si512((__m512i)x[k].v, _mm512_set1_epi32(static_cast<int>(kMagnitudeMask)));
    set |= std::uint64_t{bits_of(_mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(threshold))))}
           << (16 * k);
  }
  return set;
}
TIGHTWIRE_TARGET_AVX512 inline void fetch_large(const Lanes<float, 16>&, const Fetched& of,
                                                std::span<const std::uint32_t> places, float* values) {
  for (std::size_t i = 0; i < places.size(); i += 16) {
    const std::size_t left = places.size() - i;
    const auto some = static_cast<__mmask16>(left < 16 ? (1u << left) - 1 : 0xffffu);
    const __m512i at = _mm512_sub_epi32(_mm512_maskz_loadu_epi32(some, places.data() + i),
                                        _mm512_set1_epi32(static_cast<int>(of.first)));
    const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), some, at, of.from, 4);
    _mm512_storeu_ps(values + i, x);
    if (of.rest == nullptr) continue;
    const __m512i magnitude = _mm512_and_si512((__m512i)x, _mm512_set1_epi32(static_cast<int>(kMagnitudeMask)));
    const __mmask16 goes = _mm512_mask_cmpge_epu32_mask(some, magnitude, _mm512_set1_epi32(static_cast<int>(of.taken)));
    _mm512_mask_i32scatter_ps(of.rest, goes, at, _mm512_setzero_ps(), 4);
  }
}
TIGHTWIRE_TARGET_AVX512 inline void append_band(const Lanes<float, 16>& x, const Lanes<std::uint32_t, 16>& at,
                                                std::uint32_t low, std::uint32_t high, std::uint32_t* places,
                                                BandCount& found) {
  const __m512i magnitude = _mm512_and_si512((__m512i)x.v, _mm512_set1_epi32(static_cast<int>(kMagnitudeMask)));
  const __mmask16 reach = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(low)));
  const __mmask16 inside = _mm512_mask_cmplt_epu32_mask(reach, magnitude, _mm512_set1_epi32(static_cast<int>(high)));
  _mm512_storeu_si512(places + found.inside, _mm512_maskz_compress_epi32(inside, (__m512i)at.v));
  found.inside += lanes_in(inside);
  found.above += lanes_in(reach) - lanes_in(inside);
}
TIGHTWIRE_TARGET_AVX512 inline std::size_t append_many(const Lanes<float, 16>& x, const Lanes<std::uint32_t, 16>& at,
                                                       std::uint32_t threshold, float* values, std::uint32_t* places) {
  const __m512i magnitude = _mm512_and_si512((__m512i)x.v, _mm512_set1_epi32(static_cast<int>(kMagnitudeMask)));
  const __mmask16 set = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(threshold)));
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(set, (__m512)x.v));
  _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(set, (__m512i)at.v));
  return lanes_in(set);
}
TIGHTWIRE_TARGET_AVX512 inline std::size_t append_large(const Lanes<float, 16>& x, const Lanes<std::uint32_t, 16>& at,
                                                        std::uint32_t threshold, float* values, std::uint32_t* places) {
  const __m512i magnitude = _mm512_and_si512((__m512i)x.v, _mm512_set1_epi32(static_cast<int>(kMagnitudeMask)));
  const __mmask16 set = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(threshold)));
  const std::size_t found = lanes_in(set);
  // Seldom more than four, and long stores to any place cross cache lines.
  const __m512 large = _mm512_maskz_compress_ps(set, (__m512)x.v);
  const __m512i where = _mm512_maskz_compress_epi32(set, (__m512i)at.v);
  _mm_storeu_ps(values, __builtin_shufflevector(large, large, 0, 1, 2, 3));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(places), __builtin_shufflevector(where, where, 0, 1));
  if (found > 4) [[unlikely]] {
    _mm512_storeu_ps(values, large);
    _mm512_storeu_si512(places, where);
  }
  return found;
}
#endif

}  // namespace tightwire::detail
