#pragma once
// What PowerSGD multiplies, as low_rank/products.hpp does on the host: a matrix, row after row, with narrow factors,
// column after column. Sums have the same order, and products are added to them without being rounded first, so that
// bits are the same; but for which NaN it is. Matrices have at least one element.
#include <cstddef>
#include <cstdint>

#include <tightwire/cuda.hpp>
#include <tightwire/element.hpp>

namespace tightwire::cuda::detail {

/// Columns of a factor at most.
inline constexpr std::uint32_t kMostColumns = 64;
/// Columns of a matrix of which a block of threads makes a sum of its own: low_rank::RowProducts.
inline constexpr std::uint32_t kColumnsOfBlock = 1024;
constexpr std::uint64_t blocks_of(std::uint64_t columns) { return (columns + kColumnsOfBlock - 1) / kColumnsOfBlock; }

/// left * right^T; all on the device.
struct ProductOnDevice {
  std::uint32_t rank = 0;        ///< 0: there is none
  const float* left = nullptr;   ///< rows x rank
  const float* right = nullptr;  ///< columns x rank
};

/// The kernels of what follows, so that none is loaded while something runs.
void load_product_kernels(int rank);

/// A := x + (before - owed), which goes to `after`, and product := A * factor.
struct LeftProductJob {
  std::uint64_t rows, columns;
  const std::byte* x;  ///< [rows][columns]; null: nothing
  ElementType type;    ///< of x
  const float* before;
  float* after;  ///< may be `before`; null: A is x
  ProductOnDevice owed;
  std::uint32_t rank;   ///< 0: no product
  const float* factor;  ///< columns x rank
  float* product;       ///< rows x rank
  float* partial;       ///< [blocks_of(columns)][rank][rows]
};
void multiply_left(const LeftProductJob& job, int rank, Stream stream);

/// product := matrix^T * factor.
struct RightProductJob {
  std::uint64_t rows, columns;
  const std::byte* matrix;  ///< [rows][columns]
  ElementType type;
  std::uint32_t rank;   ///< 1 .. kMostColumns
  const float* factor;  ///< rows x rank
  float* product;       ///< columns x rank
};
void multiply_right(const RightProductJob& job, int rank, Stream stream);

/// out := the product, or NaN where there is none.
struct WriteProductJob {
  std::uint64_t rows, columns;
  ProductOnDevice product;
  std::byte* out;  ///< [rows][columns]
  ElementType type;
  float* after;                   ///< the residual, or null
  bool forgets;                   ///< what is not finite in the residual becomes 0
  float rest_times;               ///< the residual gets what `out` cannot hold, so many times; 0: it does not
  unsigned long long* overflows;  ///< counts elements that are too large for `out`
};
void write_product(const WriteProductJob& job, int rank, Stream stream);

}  // namespace tightwire::cuda::detail
