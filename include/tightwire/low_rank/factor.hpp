#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tightwire/detail/philox.hpp>

namespace tightwire::low_rank {

/// Columns of a factor at most.
inline constexpr std::size_t kMostRank = 64;

/// Of a gradient taken as a matrix, row after row.
struct Shape {
  std::size_t rows, columns;
  bool operator==(const Shape&) const = default;
};

/// The first dimension stays, the others become one, as in PowerSGD (Vogels, Karimireddy, Jaggi, "PowerSGD: practical
/// low-rank gradient compression for distributed optimization", NeurIPS 2019). A vector and a scalar are one row.
inline Shape matrix_shape(std::span<const std::int64_t> shape) {
  std::size_t elements = 1;
  for (const std::int64_t dimension : shape) elements *= static_cast<std::size_t>(dimension);
  if (shape.size() < 2) return {1, elements};
  const auto rows = static_cast<std::size_t>(shape[0]);
  return {rows, rows == 0 ? 0 : elements / rows};
}

/// True if two factors hold less than half of the numbers that the matrix does. Otherwise it is better sent whole.
constexpr bool worth_it(Shape shape, std::size_t rank) {
  const std::size_t held = std::min({rank, shape.rows, shape.columns});
  return shape.rows > 1 && shape.columns > 1 && (shape.rows + shape.columns) * held * 2 < shape.rows * shape.columns;
}
/// The rank, or the largest that is worth it.
constexpr std::size_t worthwhile_rank(Shape shape, std::size_t rank) {
  rank = std::min({rank, shape.rows, shape.columns});
  while (rank > 1 && !worth_it(shape, rank)) --rank;
  return rank;
}

/// Where a column of random numbers comes from: the same on every rank and on every CPU.
struct ColumnSeed {
  std::uint64_t seed;
  std::uint32_t parameter;  ///< its number
  std::uint32_t column;
  std::uint32_t use = 0;  ///< apart from each other: columns for different purposes
};

/// `rows` standard normal numbers, but for tails beyond 6: the sum of twelve uniform ones, formed of integers, so that
/// nothing is rounded before the end. Number i is the same for any number of rows.
inline void fill_column(float* column, std::size_t rows, const ColumnSeed& from) {
  // Apart from stochastic rounding and drawing, which have the same counters.
  constexpr std::uint32_t kPurpose = 0x6c6f7772u;
  constexpr std::uint32_t kCalls = 3, kWords = 4;
  for (std::size_t pair = 0; 2 * pair < rows; ++pair) {
    // Twelve words, of which the lower halves make one number and the upper halves the next.
    std::int32_t lower = 0, upper = 0;
    for (std::uint32_t call = 0; call < kCalls; ++call) {
      const std::uint64_t place = std::uint64_t{pair} * kCalls + call;
      const auto random = tightwire::detail::Philox::at(
          {static_cast<std::uint32_t>(place), from.use, from.column, from.parameter},
          static_cast<std::uint32_t>(from.seed) ^ kPurpose,
          static_cast<std::uint32_t>(from.seed >> 32) ^ static_cast<std::uint32_t>(place >> 32));
      for (const std::uint32_t word : random.words) {
        lower += static_cast<std::int32_t>(word & 0xffffu);
        upper += static_cast<std::int32_t>(word >> 16);
      }
    }
    // 12 * 65535 / 2 is an integer; a uniform number of 16 bits has a variance of 2^32 / 12.
    constexpr std::int32_t kMean = kCalls * kWords * 0xffff / 2;
    column[2 * pair] = static_cast<float>(lower - kMean) * 0x1p-16f;
    if (2 * pair + 1 < rows) column[2 * pair + 1] = static_cast<float>(upper - kMean) * 0x1p-16f;
  }
}

/// Fills a factor, rows x rank, column after column, with standard normal numbers. Column j depends on the seed, the
/// parameter and first_column + j alone, so that a factor can be given more columns later.
inline void seed_factor(float* factor, std::size_t rows, std::size_t rank, std::uint64_t seed, std::uint32_t parameter,
                        std::size_t first_column) {
  for (std::size_t j = 0; j < rank; ++j)
    fill_column(factor + j * rows, rows, {seed, parameter, static_cast<std::uint32_t>(first_column + j)});
}

}  // namespace tightwire::low_rank
