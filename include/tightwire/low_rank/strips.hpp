#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <tightwire/detail/lanes.hpp>

namespace tightwire::low_rank {

using tightwire::detail::Lanes;

/// Matrices are worked on in strips of so many columns. The last, where there are fewer, is padded with zeros in a
/// buffer, so that there is one loop for all widths.
inline constexpr std::size_t kStrip = 64;

/// What a packed factor takes at most: it is read again for every few rows, and must stay in the first cache, or
/// nearly.
inline constexpr std::size_t kPackedFloats = std::size_t{1} << 13;

/// Columns of the matrix of which a packed factor has room: whole strips.
constexpr std::size_t columns_at_once(std::size_t rank, std::size_t floats = kPackedFloats) {
  return std::min<std::size_t>(1024, floats / rank / kStrip * kStrip);
}

/// Copies a row of a strip, of so many columns.
template <int W>
TIGHTWIRE_INLINE void copy_row(const float* from, std::size_t width, float* to) {
  if (width != kStrip) {
    std::memcpy(to, from, width * sizeof(float));
    return;
  }
  TIGHTWIRE_UNROLL(4)
  for (std::size_t i = 0; i < kStrip; i += W) Lanes<float, W>::load(from + i).store(to + i);
}

/// Part of the right factor, columns x rank, which is stored column after column: rows first .. first + count of
/// columns first_rank .. first_rank + rank.
struct FactorPart {
  std::size_t columns;  ///< of the matrix: the distance between columns of the factor
  std::size_t first, count;
  std::size_t first_rank, rank;
};

/// Copies a part strip by strip: packed[strip][rank][kStrip]. In the factor itself, numbers that are needed together
/// lie `columns` apart, which for powers of two is the same set of the cache.
inline void pack(const float* factor, const FactorPart& part, float* packed) {
  for (std::size_t c = 0; c < part.count; c += kStrip) {
    const std::size_t width = std::min(kStrip, part.count - c);
    for (std::size_t k = 0; k < part.rank; ++k, packed += kStrip) {
      std::memcpy(packed, factor + (part.first_rank + k) * part.columns + part.first + c, width * sizeof(float));
      std::fill(packed + width, packed + kStrip, 0.0f);
    }
  }
}
/// The way back.
inline void unpack(const float* packed, const FactorPart& part, float* factor) {
  for (std::size_t c = 0; c < part.count; c += kStrip) {
    const std::size_t width = std::min(kStrip, part.count - c);
    for (std::size_t k = 0; k < part.rank; ++k, packed += kStrip)
      std::memcpy(factor + (part.first_rank + k) * part.columns + part.first + c, packed, width * sizeof(float));
  }
}

/// Copies rows of a factor, zeros for those behind its end: packed[rank][Rows].
template <std::size_t Rows>
TIGHTWIRE_INLINE void pack_rows(const float* factor, std::size_t stride, std::size_t rows, std::size_t rank,
                                float* packed) {
  for (std::size_t k = 0; k < rank; ++k)
    for (std::size_t r = 0; r < Rows; ++r) packed[k * Rows + r] = r < rows ? factor[k * stride + r] : 0.0f;
}

using tightwire::detail::add_fused_product;

/// Asks for a strip of some rows before it is its turn: rows are read in pieces of a few KiB, for which the processor's
/// own prefetching comes too late. Into the second cache, since the first is full of what is in use.
template <std::size_t Rows>
TIGHTWIRE_INLINE void prefetch_strip(const float* matrix, std::size_t stride) {
  constexpr std::size_t kLine = 16;
  for (std::size_t r = 0; r < Rows; ++r) TIGHTWIRE_UNROLL(4)
  for (std::size_t i = 0; i < kStrip; i += kLine) __builtin_prefetch(matrix + r * stride + i, 0, 2);
}

/// Calls `f.template operator()<Ranks>(k)` for all columns of a factor, as many at a time as there are left, of
/// Most (4 or 2), 2 or 1.
template <int Most, class F>
TIGHTWIRE_INLINE void for_ranks(std::size_t rank, const F& f) {
  std::size_t k = 0;
  for (; k + Most <= rank; k += Most) f.template operator()<Most>(k);
  if constexpr (Most > 2)
    if (k + 2 <= rank) {
      f.template operator()<2>(k);
      k += 2;
    }
  if (k < rank) f.template operator()<1>(k);
}

}  // namespace tightwire::low_rank
