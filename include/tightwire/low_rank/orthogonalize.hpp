#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
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

/// A factor, rows x rank, column after column, and what replaces its columns.
struct SeededFactor {
  float* factor = nullptr;
  OrthogonalizeSeed seed;
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
  /// Keeps `rows` doubles, or those of a batch, and two small matrices for the next time.
  void orthogonalize(float* factor, std::size_t rows, std::size_t rank, const OrthogonalizeSeed& seed) {
    const SeededFactor one{factor, seed};
    orthogonalize({&one, 1}, rows, rank);
  }
  /// Factors of one shape, each by itself, with the bits of one after the other: what short columns wait for, the end
  /// of a sum, several wait for together.
  void orthogonalize(std::span<const SeededFactor> factors, std::size_t rows, std::size_t rank) {
    for (std::size_t first = 0; first < factors.size(); first += together(rows))
      orthogonalize_batch(factors.subspan(first, std::min(together(rows), factors.size() - first)), rows, rank);
  }
  /// What that many factors need, so that nothing is allocated later.
  void reserve(std::size_t factors, std::size_t rows) {
    if (const std::size_t least = std::min(together(rows), factors) * rows; work_.size() < least) work_.resize(least);
    small_.resize(2 * kMostRank * kSmallStride);
  }
  /// How many factors of so many rows are worked on at once: as many as stay in the first cache.
  static constexpr std::size_t together(std::size_t rows) {
    return std::clamp<std::size_t>(kWorkRows / std::max<std::size_t>(rows, 1), 1, GramSchmidtColumn::kMostFactors);
  }

  /// Squared norm of a column, formed in double.
  double square(const float* column, std::size_t rows) {
    load(column, rows);
    return host::run<DotProduct<float>>(level_, {work_.data(), column, rows});
  }
  /// Squared norm of what of a column lies outside of the span of orthonormal ones.
  double square_outside(const float* factor, std::size_t rows, std::size_t rank, const float* column) {
    load(column, rows);
    project(factor, rows, rank);
    return host::run<DotProduct<double>>(level_, {work_.data(), work_.data(), rows});
  }

 private:
  void load(const float* column, std::size_t rows) {
    if (work_.size() < rows) work_.resize(rows);
    for (std::size_t i = 0; i < rows; ++i) work_[i] = static_cast<double>(column[i]);
  }
  /// Takes the first columns off what is loaded.
  void project(const float* factor, std::size_t rows, std::size_t columns) {
    for (std::size_t j = 0; j < columns; ++j) {
      const float* const other = factor + j * rows;
      const double along = host::run<DotProduct<float>>(level_, {work_.data(), other, rows});
      host::run<SubtractMultiple>(level_, {work_.data(), other, along, rows});
    }
  }

  /// Apart from the columns that factors begin with, of use 0.
  static constexpr std::uint32_t kFirstUse = 1;
  static constexpr double kLeastPart = 1e-6;

  static constexpr std::size_t kGramSchmidt = 4;
  static constexpr std::size_t kWorkRows = 2048;  ///< in double, of a batch
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

  void orthogonalize_batch(std::span<const SeededFactor> factors, std::size_t rows, std::size_t rank) {
    std::array<SeededFactor, GramSchmidtColumn::kMostFactors> rest;
    std::size_t count = 0;
    for (const SeededFactor& one : factors)
      if (rank <= kGramSchmidt || rank > rows || !by_cholesky(one.factor, rows, rank)) rest[count++] = one;
    if (count != 0) by_gram_schmidt({rest.data(), count}, rows, rank);
  }

  void by_gram_schmidt(std::span<const SeededFactor> factors, std::size_t rows, std::size_t rank) {
    if (work_.size() < factors.size() * rows) work_.resize(factors.size() * rows);
    std::array<bool, GramSchmidtColumn::kMostFactors> independent;
    for (std::size_t k = 0; k < rank; ++k) {
      if (k >= rows) {
        for (const SeededFactor& one : factors) std::fill_n(one.factor + k * rows, rows, 0.0f);
        continue;
      }
      orthogonalize_column(factors, rows, k, independent.data());
      for (std::size_t f = 0; f < factors.size(); ++f) {
        const auto& [factor, seed] = factors[f];
        bool done = independent[f];
        // Ends: a random column has hardly ever, let alone again and again, less than a millionth outside a subspace.
        for (std::uint32_t attempt = 0; !done; ++attempt) {
          fill_column(factor + k * rows, rows,
                      {seed.seed, seed.parameter, static_cast<std::uint32_t>(k) | attempt << 16, kFirstUse + seed.use});
          orthogonalize_column(factors.subspan(f, 1), rows, k, &done);
        }
      }
    }
  }

  /// Column k against those before. Not independent, with the column as it was, if next to nothing is left of it.
  void orthogonalize_column(std::span<const SeededFactor> factors, std::size_t rows, std::size_t k, bool* independent) {
    std::array<float*, GramSchmidtColumn::kMostFactors> at;
    for (std::size_t f = 0; f < factors.size(); ++f) at[f] = factors[f].factor;
    host::run<GramSchmidtColumn>(
        level_, {at.data(), factors.size(), rows, k, kLeastPart * kLeastPart, work_.data(), independent});
  }

  host::Level level_;
  std::vector<double> work_;   ///< columns in double
  std::vector<double> small_;  ///< the Gram matrix, and its inverse Cholesky factor
};

}  // namespace tightwire::low_rank
