#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tightwire/host/dispatch.hpp>
#include <tightwire/low_rank/cholesky_qr.hpp>
#include <tightwire/low_rank/column_sums.hpp>
#include <tightwire/low_rank/factor.hpp>

namespace tightwire::low_rank {

/// Where columns come from that replace what has no direction of its own: the same on every rank.
struct OrthogonalizeSeed {
  std::uint64_t seed = 0;
  std::uint32_t parameter = 0;  ///< its number
  std::uint32_t use = 0;        ///< steps before: other columns every time
};

/// Makes the columns of a factor orthonormal, so that the first k span what the first k spanned, for every k. All sums
/// are in double and in one order: the same bits on every rank that has the same input, whatever its CPU.
///
/// - Up to rank 4, and wherever the other way is refused: Gram-Schmidt, each column projected twice ("twice is enough":
///   Giraud, Langou, Rozloznik, "The loss of orthogonality in the Gram-Schmidt orthogonalization process", 2005).
///   4 * rows * rank^2 operations, and as many passes over the factor as it has columns, squared. It cannot fail, so
///   there is nothing behind it.
/// - Above: Cholesky QR, 2 * rows * rank^2 operations in two passes, with columns scaled to norm 1. As the Gram matrix
///   of fp32 columns is formed in double (Yamazaki, Tomov, Dongarra, "Mixed-precision Cholesky QR factorization", SIAM
///   J. Sci. Comput. 37, 2015), once is enough for conditions up to 3e3, and twice up to 3e6. No shift: what needs one
///   has a column of which less than a millionth is left, and such columns are replaced, not kept.
///
/// The rule for columns is the same either way: one that is zero or not finite, or of which the ones before leave less
/// than a millionth, is replaced by a random one.
class Orthogonalizer {
 public:
  explicit Orthogonalizer(host::Level level = host::level()) : level_(level) {}

  /// factor: rows x rank, column after column, of any finite or non-finite values. What comes out is finite, and each
  /// column has norm 1 to the rounding of fp32. More columns than rows cannot be orthogonal: the rest become zero.
  /// Keeps `rows` doubles and two small matrices for the next time.
  void orthogonalize(float* factor, std::size_t rows, std::size_t rank, const OrthogonalizeSeed& seed) {
    if (rank > kGramSchmidt && rank <= rows && by_cholesky(factor, rows, rank)) return;
    for (std::size_t k = 0; k < rank; ++k) {
      float* const column = factor + k * rows;
      if (k >= rows) {
        std::fill(column, column + rows, 0.0f);
        continue;
      }
      // Ends: a random column has hardly ever, let alone again and again, less than a millionth outside of a subspace.
      for (std::uint32_t attempt = 0; !orthogonalize_column(factor, rows, k); ++attempt)
        fill_column(column, rows,
                    {seed.seed, seed.parameter, static_cast<std::uint32_t>(k) | attempt << 16, kFirstUse + seed.use});
    }
  }

  /// Squared norm of a column, formed in double.
  double square(const float* column, std::size_t rows) {
    load(column, rows);
    return host::run<DotProduct<float>>(level_, {column_.data(), column, rows});
  }
  /// Squared norm of what of a column lies outside of the span of orthonormal ones.
  double square_outside(const float* factor, std::size_t rows, std::size_t rank, const float* column) {
    load(column, rows);
    project(factor, rows, rank);
    return host::run<DotProduct<double>>(level_, {column_.data(), column_.data(), rows});
  }

 private:
  void load(const float* column, std::size_t rows) {
    if (column_.size() < rows) column_.resize(rows);
    // A product of two floats has no overflow and no underflow in double: nothing need be scaled.
    for (std::size_t i = 0; i < rows; ++i) column_[i] = static_cast<double>(column[i]);
  }
  /// Takes the first columns off what is loaded.
  void project(const float* factor, std::size_t rows, std::size_t columns) {
    for (std::size_t j = 0; j < columns; ++j) {
      const float* const other = factor + j * rows;
      const double along = host::run<DotProduct<float>>(level_, {column_.data(), other, rows});
      host::run<SubtractMultiple>(level_, {column_.data(), other, along, rows});
    }
  }

  /// Apart from the columns that factors begin with, of use 0.
  static constexpr std::uint32_t kFirstUse = 1;
  static constexpr double kLeastPart = 1e-6;

  static constexpr std::size_t kGramSchmidt = 4;
  /// Squares of conditions: where what comes out is orthogonal to the rounding of fp32, and where it is well enough
  /// conditioned for a second time.
  static constexpr double kOnce = 1e7, kTwice = 1e13;

  /// False, with the span of the columns as it was, where a column has to be replaced or conditions are beyond it.
  bool by_cholesky(float* factor, std::size_t rows, std::size_t rank) {
    small_.resize(2 * kMostRank * kSmallStride);
    double* const inverse = small_.data() + kMostRank * kSmallStride;
    for (int round = 0; round < 2; ++round) {
      host::run<GramMatrix>(level_, {factor, rows, rank, small_.data()});
      const double condition =
          host::run<InvertCholesky>(level_, {small_.data(), inverse, rank, kLeastPart * kLeastPart});
      if (!(condition >= 0 && condition <= kTwice)) return false;
      host::run<MultiplyTriangular>(level_, {factor, rows, rank, inverse});
      if (condition <= kOnce) return true;
    }
    return false;
  }

  /// Column k against those before. False, with the column as it was, if next to nothing is left of it.
  bool orthogonalize_column(float* factor, std::size_t rows, std::size_t k) {
    float* const column = factor + k * rows;
    load(column, rows);
    double* const work = column_.data();
    const double before = host::run<DotProduct<float>>(level_, {work, column, rows});
    if (!(before > 0) || !std::isfinite(before)) return false;
    for (int round = 0; round < 2; ++round) project(factor, rows, k);
    const double after = k == 0 ? before : host::run<DotProduct<double>>(level_, {work, work, rows});
    if (!(after >= kLeastPart * kLeastPart * before)) return false;
    host::run<RoundMultiple>(level_, {work, 1 / std::sqrt(after), column, rows});
    return true;
  }

  host::Level level_;
  std::vector<double> column_;
  std::vector<double> small_;  ///< the Gram matrix, and its inverse Cholesky factor
};

}  // namespace tightwire::low_rank
