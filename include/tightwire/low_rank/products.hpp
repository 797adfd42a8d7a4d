#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <tightwire/host/elements.hpp>
#include <tightwire/low_rank/factor.hpp>
#include <tightwire/low_rank/row_products.hpp>
#include <tightwire/low_rank/strips.hpp>

// What PowerSGD multiplies: a matrix, row after row, with narrow factors, column after column. Every loop goes through
// the matrix once, near the speed of memory for ranks up to about 4, and takes 2 * rank operations per element, as many
// again where a product is subtracted on the way.
// Matrices have at least one element. Some 300 KiB of stack are used, and no other memory.
//
// The same input gives the same bits on every instruction set, because the order of every sum is fixed and products are
// added without being rounded first, which takes ten times as long where no instruction does both; but which of two NaN
// is handed on is not. Arithmetic is that in force in the thread (tightwire::detail::FloatEnvironment), and pointers
// need no more than the alignment of a float. What is read must not overlap what is written, but for a residual in
// place.

namespace tightwire::low_rank {

/// product := matrix^T * factor, or what is there already and that.
struct MultiplyTransposed {
  Shape shape;                ///< of the matrix
  std::size_t rank;           ///< 1 .. kMostRank
  const float* matrix;        ///< [rows][columns]
  const float* factor;        ///< rows x rank
  std::size_t factor_stride;  ///< from one column of it to the next: more than rows where the matrix is a tile
  float* product;             ///< columns x rank
  bool add = false;  ///< to the product of the rows above; tiles of a multiple of 8 rows give the bits of the whole
};

/// matrix := matrix - left * right^T.
struct SubtractProduct {
  Shape shape;
  std::size_t rank;         ///< 1 .. kMostRank
  const float* left;        ///< rows x rank
  std::size_t left_stride;  ///< from one column of it to the next
  const float* right;       ///< columns x rank
  float* matrix;            ///< [rows][columns]
};

/// out := scale * (left * right^T).
struct WriteProduct {
  Shape shape;
  std::size_t rank;         ///< 1 .. kMostRank
  const float* left;        ///< rows x rank
  std::size_t left_stride;  ///< from one column of it to the next
  const float* right;       ///< columns x rank
  float* out;               ///< [rows][columns]
  float scale = 1;
  bool past_cache = false;  ///< a hint: `out` will not be read soon, and may be written past the caches
};

/// The loop of MultiplyTransposed. Rows go by groups of 8: the products of a group are added from top to bottom to
/// zero, and the sums of the groups from top to bottom.
///
/// Of many columns, sums do not stay in the first cache from one group to the next. Then several groups are worked on
/// in each strip, of which rows are copied next to each other: rows of a matrix are often apart by a power of two, and
/// would be in each other's way in the cache.
struct ColumnProducts {
  using Job = MultiplyTransposed;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    if (job.rank > kFewRanks)
      run_rows<W, kManyRows>(job);
    else
      run_rows<W, kRows>(job);
  }

 private:
  static constexpr std::size_t kRows = 8;       // of a group: part of the result
  static constexpr std::size_t kManyRows = 32;  // at a time
  static constexpr std::size_t kFewRanks = 8;

  template <int W, std::size_t AtOnce>
  TIGHTWIRE_INLINE static void run_rows(const Job& job) {
    constexpr std::size_t kSums = AtOnce == kRows ? kPackedFloats : 4 * kPackedFloats;
    alignas(64) float sums[kSums];
    alignas(64) float factor[AtOnce * kMostRank];
    const std::size_t columns = job.shape.columns, at_once = columns_at_once(job.rank, kSums);
    for (std::size_t first = 0; first < columns; first += at_once) {
      const FactorPart part{columns, first, std::min(at_once, columns - first), 0, job.rank};
      if (job.add)
        pack(job.product, part, sums);
      else
        std::fill(sums, sums + (part.count + kStrip - 1) / kStrip * kStrip * job.rank, 0.0f);
      for (std::size_t row = 0; row < job.shape.rows; row += AtOnce) {
        const std::size_t rows = std::min(AtOnce, job.shape.rows - row);
        for (std::size_t r = 0; r < rows; r += kRows)
          pack_rows<kRows>(job.factor + row + r, job.factor_stride, std::min(kRows, rows - r), job.rank,
                           factor + r * job.rank);
        const Rows from{job.matrix + row * columns + first, rows, job.shape.rows - row >= 2 * AtOnce};
        if constexpr (AtOnce == kRows)
          add_rows<W>(from, part, factor, sums);
        else
          add_many_rows<W>(from, part, factor, sums);
      }
      unpack(sums, part, job.product);
    }
  }

  struct Rows {
    const float* matrix;
    std::size_t count;
    bool more;  ///< as many below
  };

  template <int W>
  TIGHTWIRE_INLINE static void add_rows(const Rows& from, const FactorPart& part, const float* factor, float* sums) {
    for (std::size_t c = 0; c < part.count; c += kStrip, sums += kStrip * part.rank) {
      const std::size_t width = std::min(kStrip, part.count - c);
      if (from.count == kRows && width == kStrip) {
        if (from.more) prefetch_strip<kRows>(from.matrix + kRows * part.columns + c, part.columns);
        add_strip<W>(from.matrix + c, part.columns, factor, part.rank, sums);
      } else {
        alignas(64) float padded[kRows * kStrip] = {};
        for (std::size_t r = 0; r < from.count; ++r)
          std::memcpy(padded + r * kStrip, from.matrix + r * part.columns + c, width * sizeof(float));
        add_strip<W>(padded, kStrip, factor, part.rank, sums);
      }
    }
  }

  template <int W>
  TIGHTWIRE_INLINE static void add_many_rows(const Rows& from, const FactorPart& part, const float* factor,
                                             float* sums) {
    alignas(64) float packed[kManyRows * kStrip];
    for (std::size_t c = 0; c < part.count; c += kStrip, sums += kStrip * part.rank) {
      const std::size_t width = std::min(kStrip, part.count - c);
      const std::size_t groups = (from.count + kRows - 1) / kRows;
      if (from.count % kRows != 0 || width != kStrip) std::fill(packed, packed + groups * kRows * kStrip, 0.0f);
      for (std::size_t r = 0; r < from.count; ++r)
        copy_row<W>(from.matrix + r * part.columns + c, width, packed + r * kStrip);
      for (std::size_t g = 0; g < groups; ++g) {
        if (from.more) prefetch_strip<kRows>(from.matrix + (kManyRows + g * kRows) * part.columns + c, part.columns);
        add_strip<W>(packed + g * kRows * kStrip, kStrip, factor + g * kRows * part.rank, part.rank, sums);
      }
    }
  }

  template <int W>
  TIGHTWIRE_INLINE static void add_strip(const float* matrix, std::size_t stride, const float* factor, std::size_t rank,
                                         float* sums) {
    constexpr int kRegisters = W == 16 ? 4 : 2;
    for_ranks<4>(rank, [&]<int Ranks>(std::size_t k) TIGHTWIRE_LAMBDA_INLINE {
      for (std::size_t c = 0; c < kStrip; c += kRegisters * W)
        add_tile<W, kRegisters, Ranks>(matrix + c, stride, factor + k * kRows, sums + k * kStrip + c);
    });
  }

  template <int W, int Registers, int Ranks>
  TIGHTWIRE_INLINE static void add_tile(const float* matrix, std::size_t stride, const float* factor, float* sums) {
    Lanes<float, W> sum[Ranks][Registers];
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < Ranks; ++j) TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < Registers; ++i) sum[j][i] = Lanes<float, W>(0.0f);
    for (std::size_t r = 0; r < kRows; ++r) {
      Lanes<float, W> a[Registers];
      host::load<W>(matrix + r * stride, a);
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < Ranks; ++j) {
        const Lanes<float, W> p(factor[static_cast<std::size_t>(j) * kRows + r]);
        TIGHTWIRE_UNROLL(4)
        for (int i = 0; i < Registers; ++i) add_fused_product(sum[j][i], a[i], p);
      }
    }
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < Ranks; ++j) {
      float* const to = sums + static_cast<std::size_t>(j) * kStrip;
      TIGHTWIRE_UNROLL(4)
      for (int i = 0; i < Registers; ++i) (Lanes<float, W>::load(to + W * i) + sum[j][i]).store(to + W * i);
    }
  }
};

/// The loop of SubtractProduct and of WriteProduct. An element of the product is the sum over the columns of the
/// factors, from the first to the last, added to zero.
template <bool Subtract>
struct OuterProducts {
  using Job = WriteProduct;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    alignas(64) float packed[kPackedFloats];
    alignas(64) float left[kRows * kMostRank];
    const std::size_t columns = job.shape.columns, at_once = columns_at_once(job.rank);
    const bool past_cache = job.past_cache && columns % 16 == 0 && host::is_aligned(job.out);
    for (std::size_t first = 0; first < columns; first += at_once) {
      const FactorPart part{columns, first, std::min(at_once, columns - first), 0, job.rank};
      pack(job.right, part, packed);
      for (std::size_t row = 0; row < job.shape.rows; row += kRows) {
        const std::size_t rows = std::min(kRows, job.shape.rows - row);
        pack_rows<kRows>(job.left + row, job.left_stride, rows, job.rank, left);
        const Rows to{job.out + row * columns + first, rows, job.shape.rows - row >= 2 * kRows, job.scale, past_cache};
        write_rows<W>(to, part, left, packed);
      }
    }
    tightwire::detail::order_stores_past_cache();
  }

 private:
  static constexpr std::size_t kRows = 4;
  struct Rows {
    float* out;
    std::size_t count;
    bool more;  ///< as many below
    float scale;
    bool past_cache;
  };

  template <int W>
  TIGHTWIRE_INLINE static void write_rows(const Rows& to, const FactorPart& part, const float* left,
                                          const float* right) {
    constexpr int kRegisters = W == 16 ? 4 : 2;
    for (std::size_t c = 0; c < part.count; c += kStrip, right += kStrip * part.rank) {
      const std::size_t width = std::min(kStrip, part.count - c);
      if (to.count == kRows && width == kStrip) {
        if constexpr (Subtract)
          if (to.more) prefetch_strip<kRows>(to.out + kRows * part.columns + c, part.columns);
        for (std::size_t i = 0; i < kStrip; i += kRegisters * W)
          write_tile<W, kRegisters>({to.out + c + i, part.columns, to.scale, to.past_cache}, left, right + i,
                                    part.rank);
        continue;
      }
      alignas(64) float padded[kRows * kStrip] = {};
      if constexpr (Subtract)
        for (std::size_t r = 0; r < to.count; ++r)
          std::memcpy(padded + r * kStrip, to.out + r * part.columns + c, width * sizeof(float));
      for (std::size_t i = 0; i < kStrip; i += kRegisters * W)
        write_tile<W, kRegisters>({padded + i, kStrip, to.scale, false}, left, right + i, part.rank);
      for (std::size_t r = 0; r < to.count; ++r)
        std::memcpy(to.out + r * part.columns + c, padded + r * kStrip, width * sizeof(float));
    }
  }

  struct Tile {
    float* out;
    std::size_t stride;
    float scale;
    bool past_cache;
  };

  template <int W, int Registers>
  TIGHTWIRE_INLINE static void write_tile(const Tile& tile, const float* left, const float* right, std::size_t rank) {
    Lanes<float, W> sum[kRows][Registers];
    TIGHTWIRE_UNROLL(4)
    for (std::size_t r = 0; r < kRows; ++r) TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < Registers; ++i) sum[r][i] = Lanes<float, W>(0.0f);
    for (std::size_t k = 0; k < rank; ++k) {
      Lanes<float, W> q[Registers];
      host::load<W>(right + k * kStrip, q);
      TIGHTWIRE_UNROLL(4)
      for (std::size_t r = 0; r < kRows; ++r) {
        const Lanes<float, W> p(left[k * kRows + r]);
        TIGHTWIRE_UNROLL(4)
        for (int i = 0; i < Registers; ++i) add_fused_product(sum[r][i], q[i], p);
      }
    }
    const Lanes<float, W> scale(tile.scale);
    TIGHTWIRE_UNROLL(4)
    for (std::size_t r = 0; r < kRows; ++r) {
      float* const out = tile.out + r * tile.stride;
      TIGHTWIRE_UNROLL(4)
      for (int i = 0; i < Registers; ++i) {
        if constexpr (Subtract)
          (Lanes<float, W>::load(out + W * i) - sum[r][i]).store(out + W * i);
        else if (tile.past_cache)
          tightwire::detail::store_past_cache(scale * sum[r][i], out + W * i);
        else
          (scale * sum[r][i]).store(out + W * i);
      }
    }
  }
};

/// 12 bytes per element, 4 without a residual. See RowProducts for the order of the sums.
inline void add_and_multiply(host::Level level, const AddAndMultiply& job) { host::run<RowProducts>(level, job); }

/// 4 bytes per element. See ColumnProducts for the order of the sums.
inline void multiply_transposed(host::Level level, const MultiplyTransposed& job) {
  host::run<ColumnProducts>(level, job);
}

/// 8 bytes per element. See OuterProducts for the order of the sums.
inline void subtract_product(host::Level level, const SubtractProduct& job) {
  host::run<OuterProducts<true>>(level,
                                 {job.shape, job.rank, job.left, job.left_stride, job.right, job.matrix, 1.0f, false});
}

/// 4 bytes per element.
inline void write_product(host::Level level, const WriteProduct& job) { host::run<OuterProducts<false>>(level, job); }

}  // namespace tightwire::low_rank
