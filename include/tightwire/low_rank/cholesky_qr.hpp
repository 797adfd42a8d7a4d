#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>

#include <tightwire/host/dispatch.hpp>
#include <tightwire/low_rank/column_sums.hpp>
#include <tightwire/low_rank/factor.hpp>
#include <tightwire/low_rank/lane_sums.hpp>

// The loops of Cholesky QR: the columns of a factor become orthonormal by two passes over it, however many they are.
// All in double, in one order on every instruction set; 96 KiB of stack at most.

namespace tightwire::low_rank {

/// From one row of a small matrix to the next.
inline constexpr std::size_t kSmallStride = kMostRank;

/// Some rows of a factor in double, column after column, padded with zeros.
struct FactorChunk {
  static constexpr std::size_t kRows = 128;
  alignas(64) double columns[kMostRank * kRows];

  template <int W>
  TIGHTWIRE_INLINE void load(const float* factor, std::size_t rows, std::size_t rank, std::size_t first) {
    const std::size_t count = std::min(kRows, rows - first), padded = rank + 3 < kMostRank ? rank + 3 : kMostRank;
    for (std::size_t k = 0; k < rank; ++k) {
      const float* const from = factor + k * rows + first;
      double* const to = columns + k * kRows;
      std::size_t i = 0;
      for (; i + W / 2 <= count; i += W / 2) load_doubles<W>(from + i).store(to + i);
      for (; i < count; ++i) to[i] = static_cast<double>(from[i]);
      std::fill(to + count, to + kRows, 0.0);
    }
    std::fill(columns + rank * kRows, columns + padded * kRows, 0.0);
  }
};

/// gram := factor^T * factor, its upper half. Products of two floats are exact in double. An element is the sum over
/// chunks of 128 rows, from first to last, of the sum of 8 partial sums: number s has rows s, s + 8, s + 16 ... of the
/// chunk, then s and s + 4 are added for s < 4, s and s + 2 for s < 2, and the last two.
struct GramMatrix {
  struct Job {
    const float* factor;  ///< rows x rank
    std::size_t rows, rank;
    double* gram;  ///< [kMostRank][kSmallStride]
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    constexpr std::size_t kTile = W == 16 ? 4 : 2;
    FactorChunk chunk;
    for (std::size_t first = 0; first < job.rows; first += FactorChunk::kRows) {
      chunk.load<W>(job.factor, job.rows, job.rank, first);
      for (std::size_t a = 0; a < job.rank; a += kTile)
        for (std::size_t b = 0; b <= a; b += kTile) {
          alignas(64) double sums[kTile * kTile];
          multiply<W, kTile>(chunk, a, b, sums);
          for (std::size_t i = 0; i < kTile && a + i < job.rank; ++i)
            for (std::size_t j = 0; j < kTile; ++j) {
              double& to = job.gram[(b + j) * kSmallStride + a + i];
              to = first == 0 ? sums[i * kTile + j] : to + sums[i * kTile + j];
            }
        }
    }
  }

 private:
  template <int W, int Tile>
  TIGHTWIRE_INLINE static void multiply(const FactorChunk& chunk, std::size_t a, std::size_t b, double* sums) {
    constexpr int kLanes = W / 2, kParts = 8 / kLanes, kColumns = Tile;
    constexpr auto kStride = FactorChunk::kRows;
    Doubles<W> sum[kParts][kColumns * kColumns];
    TIGHTWIRE_UNROLL(4)
    for (int p = 0; p < kParts; ++p) TIGHTWIRE_UNROLL(16)
    for (int i = 0; i < kColumns * kColumns; ++i) sum[p][i] = same_everywhere<W>(0.0);
    for (std::size_t row = 0; row < kStride; row += 8) {
      TIGHTWIRE_UNROLL(4)
      for (int p = 0; p < kParts; ++p) {
        const double* const at = chunk.columns + row + static_cast<std::size_t>(p * kLanes);
        Doubles<W> y[kColumns];
        TIGHTWIRE_UNROLL(4)
        for (int j = 0; j < kColumns; ++j) y[j] = Doubles<W>::load(at + (b + static_cast<std::size_t>(j)) * kStride);
        TIGHTWIRE_UNROLL(4)
        for (int i = 0; i < kColumns; ++i) {
          const auto x = Doubles<W>::load(at + (a + static_cast<std::size_t>(i)) * kStride);
          TIGHTWIRE_UNROLL(4)
          for (int j = 0; j < kColumns; ++j) sum[p][i * kColumns + j] = sum[p][i * kColumns + j] + x * y[j];
        }
      }
    }
    // As many sums at a time as there are lanes.
    constexpr int kAtOnce = kLanes < kColumns * kColumns ? kLanes : kColumns * kColumns;
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < kColumns * kColumns; i += kAtOnce) {
      Doubles<W> some[kParts][kAtOnce];
      TIGHTWIRE_UNROLL(4)
      for (int p = 0; p < kParts; ++p) TIGHTWIRE_UNROLL(8)
      for (int j = 0; j < kAtOnce; ++j) some[p][j] = sum[p][i + j];
      alignas(64) double lanes[kLanes];
      sum_parts(some, lanes);
      std::copy_n(lanes, kAtOnce, sums + i);
    }
  }
};

/// From the Gram matrix of columns to what makes them orthonormal: with the columns scaled to norm 1, by D, their Gram
/// matrix is U^T U, and factor * D * U^-1 is orthonormal. Every element has its sums in one order, and products are
/// rounded before anything is added.
struct InvertCholesky {
  struct Job {
    double* gram;     ///< [kMostRank][kSmallStride], the upper half; becomes U
    double* inverse;  ///< as much; becomes D * U^-1, zeros below the diagonal
    std::size_t rank;
    double least_pivot;  ///< for squares of the diagonal of U: what of a column's square the ones before leave
  };
  /// An upper bound of the square of the condition of U: rank * |U^-1|^2, as |U|^2 is the rank. Negative, with no
  /// inverse, where a column is zero or not finite or a pivot is below the least.
  template <int W>
  TIGHTWIRE_INLINE static double run(const Job& job) {
    double scale[kMostRank];
    for (std::size_t k = 0; k < job.rank; ++k) {
      const double square = job.gram[k * kSmallStride + k];
      if (!(square > 0) || !std::isfinite(square)) return -1;
      scale[k] = 1 / std::sqrt(square);
    }
    for (std::size_t i = 0; i < job.rank; ++i) {
      double* const row = job.gram + i * kSmallStride;
      for (std::size_t j = i; j < job.rank; ++j) row[j] = i == j ? 1.0 : row[j] * scale[i] * scale[j];
    }
    return factorize<W>(job) ? invert<W>(job, scale) : -1;
  }

 private:
  template <int W>
  TIGHTWIRE_INLINE static bool factorize(const Job& job) {
    for (std::size_t k = 0; k < job.rank; ++k) {
      double* const row = job.gram + k * kSmallStride;
      if (!(row[k] >= job.least_pivot)) return false;
      const double root = std::sqrt(row[k]);
      for (std::size_t j = k; j < job.rank; ++j) row[j] /= root;
      for (std::size_t i = k + 1; i < job.rank; ++i)
        subtract_multiple<W>(job.gram + i * kSmallStride, row, row[i], i, job.rank);
    }
    return true;
  }
  template <int W>
  TIGHTWIRE_INLINE static double invert(const Job& job, const double* scale) {
    alignas(64) double squares[kSmallStride] = {};
    for (std::size_t i = job.rank; i-- > 0;) {
      double* const row = job.inverse + i * kSmallStride;
      const double* const u = job.gram + i * kSmallStride;
      std::fill(row, row + kSmallStride, 0.0);
      row[i] = 1;
      for (std::size_t j = i + 1; j < job.rank; ++j)
        subtract_multiple<W>(row, job.inverse + j * kSmallStride, u[j], j, job.rank);
      for (std::size_t j = i; j < job.rank; ++j) row[j] /= u[i];
      add_squares<W>(row, job.rank, squares);
    }
    for (std::size_t i = 0; i < job.rank; ++i)
      for (std::size_t j = i; j < job.rank; ++j) job.inverse[i * kSmallStride + j] *= scale[i];
    double all = 0;
    for (const double square : squares) all += square;
    return all * static_cast<double>(job.rank);
  }
  /// to -= factor * from, in whole registers: what lies before `first` in the same one is of no use to anybody, or 0.
  template <int W>
  TIGHTWIRE_INLINE static void subtract_multiple(double* to, const double* from, double factor, std::size_t first,
                                                 std::size_t end) {
    constexpr std::size_t kLanes = W / 2;
    const Doubles<W> by = same_everywhere<W>(factor);
    for (std::size_t i = first / kLanes * kLanes; i < end; i += kLanes)
      (load_doubles<W>(to + i) - rounded_product<W>(by, load_doubles<W>(from + i))).store(to + i);
  }
  template <int W>
  TIGHTWIRE_INLINE static void add_squares(const double* x, std::size_t count, double* squares) {
    for (std::size_t i = 0; i < count; i += W / 2) {
      const Doubles<W> value = load_doubles<W>(x + i);
      (load_doubles<W>(squares + i) + rounded_product<W>(value, value)).store(squares + i);
    }
  }
};

/// factor := factor * small, of which nothing but the upper half is used. An element is the sum over columns from first
/// to last, of rounded products, rounded to fp32.
struct MultiplyTriangular {
  struct Job {
    float* factor;  ///< rows x rank
    std::size_t rows, rank;
    const double* small;  ///< [kMostRank][kSmallStride], zeros below the diagonal
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    FactorChunk chunk;
    constexpr std::size_t kStep = kRegisters<W> * (W / 2);
    for (std::size_t first = 0; first < job.rows; first += FactorChunk::kRows) {
      const std::size_t count = std::min(FactorChunk::kRows, job.rows - first);
      chunk.load<W>(job.factor, job.rows, job.rank, first);
      for (std::size_t k = 0; k < job.rank; k += kColumns)
        for (std::size_t i = 0; i < count; i += kStep) {
          alignas(64) float out[kColumns][kStep];
          multiply<W>(chunk.columns + i, job.small + k, std::min(k + kColumns, job.rank), out);
          for (std::size_t j = 0; j < kColumns && k + j < job.rank; ++j)
            std::copy_n(out[j], std::min(kStep, count - i), job.factor + (k + j) * job.rows + first + i);
        }
    }
  }

 private:
  static constexpr std::size_t kColumns = 4;
  template <int W>
  static constexpr std::size_t kRegisters = W == 16 ? 4 : 2;

  template <int W>
  TIGHTWIRE_INLINE static void multiply(const double* chunk, const double* small, std::size_t columns,
                                        float (&out)[kColumns][kRegisters<W> * (W / 2)]) {
    constexpr std::size_t kLanes = W / 2;
    Doubles<W> sum[kColumns][kRegisters<W>];
    TIGHTWIRE_UNROLL(4)
    for (std::size_t j = 0; j < kColumns; ++j) TIGHTWIRE_UNROLL(4)
    for (std::size_t i = 0; i < kRegisters<W>; ++i) sum[j][i] = same_everywhere<W>(0.0);
    for (std::size_t k = 0; k < columns; ++k, chunk += FactorChunk::kRows, small += kSmallStride) {
      Doubles<W> x[kRegisters<W>];
      TIGHTWIRE_UNROLL(4)
      for (std::size_t i = 0; i < kRegisters<W>; ++i) x[i] = load_doubles<W>(chunk + i * kLanes);
      TIGHTWIRE_UNROLL(4)
      for (std::size_t j = 0; j < kColumns; ++j) {
        const Doubles<W> by = same_everywhere<W>(small[j]);
        TIGHTWIRE_UNROLL(4)
        for (std::size_t i = 0; i < kRegisters<W>; ++i) sum[j][i] = sum[j][i] + rounded_product<W>(x[i], by);
      }
    }
    using Floats = Lanes<float, W / 2>;
    TIGHTWIRE_UNROLL(4)
    for (std::size_t j = 0; j < kColumns; ++j) TIGHTWIRE_UNROLL(4)
    for (std::size_t i = 0; i < kRegisters<W>; ++i)
      Floats::of(__builtin_convertvector(sum[j][i].v, typename Floats::Vector)).store(out[j] + i * kLanes);
  }
};

}  // namespace tightwire::low_rank
