#include <tightwire/cuda/access.cuh>

#include "kernel_launch.cuh"
#include "product_kernels.hpp"

namespace tightwire::cuda::detail {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr unsigned kWidth = 4;  // elements that a thread has side by side: 16 bytes
/// The host pads matrices with zeros to so many columns. A sum that is -0, as products that are too small leave it,
/// becomes +0 by that.
constexpr std::uint64_t kPadded = 64;

template <class N>
__device__ N least(N a, N b) {
  return a < b ? a : b;
}
/// How many of `kWidth` elements from `at` on there are.
__device__ unsigned width_at(std::uint64_t at, std::uint64_t end) {
  return at < end ? static_cast<unsigned>(least<std::uint64_t>(kWidth, end - at)) : 0;
}
/// Zeros behind the first `width`.
__device__ void load_four(const float* at, unsigned width, float (&x)[kWidth]) {
  if (width == kWidth && is_aligned(at, 16)) {
    const float4 all = *reinterpret_cast<const float4*>(at);
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    return;
  }
#pragma unroll
  for (unsigned i = 0; i < kWidth; ++i) x[i] = i < width ? at[i] : 0.0f;
}
/// In words of PTX, as nvcc for sm_90 makes four stores of one.
__device__ void store_16_bytes(float* at, const float (&x)[kWidth]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ void store_four(float* at, unsigned width, const float (&x)[kWidth]) {
  if (width == kWidth && is_aligned(at, 16)) return store_16_bytes(at, x);
#pragma unroll
  for (unsigned i = 0; i < kWidth; ++i)
    if (i < width) at[i] = x[i];
}
/// Of a buffer of any type, from element `i` on.
__device__ void load_four(const std::byte* data, ElementType type, std::uint64_t i, unsigned width,
                          float (&x)[kWidth]) {
  const bool whole = width == kWidth;
  if (type == ElementType::f32 && is_aligned(data, 4))
    return load_four(reinterpret_cast<const float*>(data) + i, width, x);
  if (type != ElementType::f32 && whole && is_aligned(data + 2 * i, 8)) {
    const uint2 all = *reinterpret_cast<const uint2*>(data + 2 * i);
    x[0] = widened(type, all.x & 0xffffu), x[1] = widened(type, all.x >> 16);
    x[2] = widened(type, all.y & 0xffffu), x[3] = widened(type, all.y >> 16);
    return;
  }
  x[0] = x[1] = x[2] = x[3] = 0.0f;
#pragma unroll 1
  for (unsigned n = 0; n < width; ++n) {
    const float one = type == ElementType::f32
                          ? tightwire::detail::from_bits(load_any<std::uint32_t>(data + 4 * (i + n)))
                          : widened(type, load_any<std::uint16_t>(data + 2 * (i + n)));
    // Selected, as an array that is indexed would be in local memory.
#pragma unroll
    for (unsigned k = 0; k < kWidth; ++k) x[k] = k == n ? one : x[k];
  }
}
__device__ void store_four(std::byte* data, ElementType type, std::uint64_t i, unsigned width,
                           const float (&x)[kWidth]) {
  if (type == ElementType::f32 && is_aligned(data, 4)) return store_four(reinterpret_cast<float*>(data) + i, width, x);
  if (type != ElementType::f32 && width == kWidth && is_aligned(data + 2 * i, 8)) {
    *reinterpret_cast<uint2*>(data + 2 * i) = {narrowed(type, x[0]) | narrowed(type, x[1]) << 16,
                                               narrowed(type, x[2]) | narrowed(type, x[3]) << 16};
    return;
  }
#pragma unroll 1
  for (unsigned n = 0; n < width; ++n) {
    float one = 0.0f;
#pragma unroll
    for (unsigned k = 0; k < kWidth; ++k) one = k == n ? x[k] : one;
    if (type == ElementType::f32)
      store_any(data + 4 * (i + n), tightwire::detail::to_bits(one));
    else
      store_any(data + 2 * (i + n), static_cast<std::uint16_t>(narrowed(type, one)));
  }
}

// A block of threads has some rows and as many columns as a sum of its own has, each four threads two rows: thread t of
// them has columns 4 t .. 4 t + 3 of every 16, which are four of the 16 partial sums.
constexpr unsigned kThreadsLeft = 256, kThreadsOfRows = 4, kRowsAtOnce = 2, kRanksAtOnce = 4;
constexpr unsigned kRowsLeft = kThreadsLeft / kThreadsOfRows * kRowsAtOnce;
constexpr unsigned kPartialSums = 16;

/// Some columns of two rows.
struct Place {
  std::uint64_t row, column;
  unsigned width;  ///< of columns
  __device__ unsigned width_of(const LeftProductJob& job, unsigned r) const { return row + r < job.rows ? width : 0; }
  __device__ std::uint64_t element(const LeftProductJob& job, unsigned r) const {
    return (row + r) * job.columns + column;
  }
};

/// What is owed of both rows: an element is the sum over the columns of the factors, from the first to the last.
__device__ void owed_of(const LeftProductJob& job, const Place& place, float (&less)[kRowsAtOnce][kWidth]) {
#pragma unroll
  for (unsigned r = 0; r < kRowsAtOnce; ++r)
#pragma unroll
    for (unsigned i = 0; i < kWidth; ++i) less[r][i] = 0.0f;
#pragma unroll 1
  for (unsigned k = 0; k < job.owed.rank; ++k) {
    float right[kWidth];
    load_four(job.owed.right + k * job.columns + place.column, place.width, right);
#pragma unroll
    for (unsigned r = 0; r < kRowsAtOnce; ++r) {
      const float left = place.row + r < job.rows ? job.owed.left[k * job.rows + place.row + r] : 0.0f;
#pragma unroll
      for (unsigned i = 0; i < kWidth; ++i) less[r][i] = __fmaf_rn(right[i], left, less[r][i]);
    }
  }
}
/// The sum of gradient and residual, which is kept.
__device__ void add_rows(const LeftProductJob& job, const Place& place, float (&a)[kRowsAtOnce][kWidth]) {
  float less[kRowsAtOnce][kWidth];
  if (job.owed.rank != 0) owed_of(job, place, less);
#pragma unroll
  for (unsigned r = 0; r < kRowsAtOnce; ++r) {
    const unsigned width = place.width_of(job, r);
    const std::uint64_t at = place.element(job, r);
    if (job.x != nullptr) load_four(job.x, job.type, at, width, a[r]);
    if (job.after == nullptr) continue;
    float before[kWidth];
    load_four(job.before + at, width, before);
#pragma unroll
    for (unsigned i = 0; i < kWidth; ++i) {
      if (job.owed.rank != 0) before[i] -= less[r][i];
      a[r][i] = job.x != nullptr ? a[r][i] + before[i] : before[i];
    }
    store_four(job.after + at, width, a[r]);
  }
}
/// What `add_rows` has made of the same place.
__device__ void load_rows(const LeftProductJob& job, const Place& place, float (&a)[kRowsAtOnce][kWidth]) {
#pragma unroll
  for (unsigned r = 0; r < kRowsAtOnce; ++r) {
    if (job.after != nullptr)
      load_four(job.after + place.element(job, r), place.width_of(job, r), a[r]);
    else
      load_four(job.x, job.type, place.element(job, r), place.width_of(job, r), a[r]);
  }
}

__global__ void __launch_bounds__(kThreadsLeft) left_product_kernel(const __grid_constant__ LeftProductJob job) {
  const std::uint64_t tiles = (job.rows + kRowsLeft - 1) / kRowsLeft, block = blockIdx.x / tiles;
  const std::uint64_t row = blockIdx.x % tiles * kRowsLeft + threadIdx.x / kThreadsOfRows * kRowsAtOnce;
  const std::uint64_t first = block * kColumnsOfBlock, end = least(job.columns, first + kColumnsOfBlock);
  const std::uint64_t padded = first + (end - first + kPadded - 1) / kPadded * kPadded;
  const unsigned lane = threadIdx.x % kThreadsOfRows;
#pragma unroll 1
  for (unsigned k = 0; k == 0 || k < job.rank; k += kRanksAtOnce) {
    float sums[kRanksAtOnce][kRowsAtOnce][kWidth] = {};
#pragma unroll 1
    for (std::uint64_t column = first + kWidth * lane; column < padded; column += kPartialSums) {
      const Place place{row, column, width_at(column, end)};
      float a[kRowsAtOnce][kWidth];
      k == 0 ? add_rows(job, place, a) : load_rows(job, place, a);
#pragma unroll
      for (unsigned j = 0; j < kRanksAtOnce; ++j) {
        if (k + j >= job.rank) continue;
        float factor[kWidth];
        load_four(job.factor + (k + j) * job.columns + column, place.width, factor);
#pragma unroll
        for (unsigned r = 0; r < kRowsAtOnce; ++r)
#pragma unroll
          for (unsigned i = 0; i < kWidth; ++i) sums[j][r][i] = __fmaf_rn(a[r][i], factor[i], sums[j][r][i]);
      }
    }
    // The second half of partial sums to the first, and so on: of the threads of a row, then of one thread.
#pragma unroll
    for (unsigned j = 0; j < kRanksAtOnce; ++j)
#pragma unroll
      for (unsigned r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
        for (unsigned distance = kThreadsOfRows / 2; distance != 0; distance /= 2)
#pragma unroll
          for (unsigned i = 0; i < kWidth; ++i) sums[j][r][i] += __shfl_xor_sync(kAllLanes, sums[j][r][i], distance);
        const float sum = (sums[j][r][0] + sums[j][r][2]) + (sums[j][r][1] + sums[j][r][3]);
        if (lane == 0 && k + j < job.rank && row + r < job.rows)
          job.partial[(block * job.rank + k + j) * job.rows + row + r] = sum;
      }
  }
}

struct AddProducts {
  const float* partial;  ///< [blocks][count]
  float* product;
  std::uint64_t count, blocks;
};
__global__ void add_product_kernel(const __grid_constant__ AddProducts job) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= job.count) return;
  float sum = job.partial[i];
#pragma unroll 1
  for (std::uint64_t block = 1; block < job.blocks; ++block) sum += job.partial[block * job.count + i];
  job.product[i] = sum;
}

// A block of threads has a few columns of all rows, since sums of groups of 8 rows are added from top to bottom: each
// thread sums up a group of 4 columns, and then some add up what the groups of a tile have come to.
constexpr unsigned kThreadsRight = 512, kColumnsRight = 32, kRowsOfGroup = 8;
constexpr unsigned kThreadsOfGroup = kColumnsRight / kWidth, kGroups = kThreadsRight / kThreadsOfGroup;

__global__ void __launch_bounds__(kThreadsRight) right_product_kernel(const __grid_constant__ RightProductJob job) {
  __shared__ float sums[kMostColumns * kColumnsRight];
  __shared__ __align__(16) float of_groups[kGroups][kRanksAtOnce * kColumnsRight];
  const unsigned group = threadIdx.x / kThreadsOfGroup, at = threadIdx.x % kThreadsOfGroup * kWidth;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kColumnsRight;
  const unsigned width = width_at(first + at, job.columns);
  for (unsigned i = threadIdx.x; i < job.rank * kColumnsRight; i += kThreadsRight) sums[i] = 0.0f;
#pragma unroll 1
  for (std::uint64_t tile = 0; tile < job.rows; tile += kGroups * kRowsOfGroup) {
    const std::uint64_t row = tile + group * kRowsOfGroup;
    float a[kRowsOfGroup][kWidth];
#pragma unroll
    for (unsigned r = 0; r < kRowsOfGroup; ++r)
      load_four(job.matrix, job.type, (row + r) * job.columns + first + at, row + r < job.rows ? width : 0, a[r]);
    const auto groups =
        static_cast<unsigned>(least<std::uint64_t>(kGroups, (job.rows - tile + kRowsOfGroup - 1) / kRowsOfGroup));
#pragma unroll 1
    for (unsigned k = 0; k < job.rank; k += kRanksAtOnce) {
      const unsigned ranks = least(kRanksAtOnce, job.rank - k);
#pragma unroll 1
      for (unsigned j = 0; j < ranks; ++j) {
        float sum[kWidth] = {};
#pragma unroll
        for (unsigned r = 0; r < kRowsOfGroup; ++r) {
          const float factor = row + r < job.rows ? job.factor[(k + j) * job.rows + row + r] : 0.0f;
#pragma unroll
          for (unsigned i = 0; i < kWidth; ++i) sum[i] = __fmaf_rn(a[r][i], factor, sum[i]);
        }
        *reinterpret_cast<float4*>(&of_groups[group][j * kColumnsRight + at]) = {sum[0], sum[1], sum[2], sum[3]};
      }
      __syncthreads();
      if (threadIdx.x < ranks * kColumnsRight) {
        float sum = sums[k * kColumnsRight + threadIdx.x];
#pragma unroll 4
        for (unsigned g = 0; g < groups; ++g) sum += of_groups[g][threadIdx.x];
        sums[k * kColumnsRight + threadIdx.x] = sum;
      }
      __syncthreads();
    }
  }
  for (unsigned i = threadIdx.x; i < job.rank * kColumnsRight; i += kThreadsRight)
    if (const std::uint64_t column = first + i % kColumnsRight; column < job.columns)
      job.product[i / kColumnsRight * job.columns + column] = sums[i];
}

constexpr unsigned kThreadsWrite = 256, kColumnsWrite = 64, kRowsWrite = 4;
constexpr unsigned kThreadsOfWidth = kColumnsWrite / kWidth;
constexpr unsigned kRowsOfTile = kThreadsWrite / kThreadsOfWidth * kRowsWrite;

/// Of some elements, what they leave to the residual. Returns how many are too large.
__device__ unsigned settle_rest(const WriteProductJob& job, std::uint64_t at, unsigned width,
                                const float (&x)[kWidth]) {
  unsigned overflows = 0;
#pragma unroll
  for (unsigned i = 0; i < kWidth; ++i) {
    if (i >= width) continue;
    float kept = job.after != nullptr ? job.after[at + i] : 0.0f;
    const float before = kept;
    if (job.forgets && !is_finite(kept)) kept = 0.0f;
    if (job.product.rank != 0) {
      const float rest = job.type == ElementType::f32 ? x[i] : x[i] - rounded(job.type, x[i]);
      if (!is_finite(rest)) ++overflows;
      if (job.type != ElementType::f32 && job.rest_times != 0.0f && is_finite(rest)) kept += rest * job.rest_times;
    }
    if (job.after != nullptr && tightwire::detail::to_bits(kept) != tightwire::detail::to_bits(before))
      job.after[at + i] = kept;
  }
  return overflows;
}

__global__ void __launch_bounds__(kThreadsWrite) write_product_kernel(const __grid_constant__ WriteProductJob job) {
  const std::uint64_t tiles = (job.columns + kColumnsWrite - 1) / kColumnsWrite;
  const std::uint64_t column = blockIdx.x % tiles * kColumnsWrite + threadIdx.x % kThreadsOfWidth * kWidth;
  const std::uint64_t row = blockIdx.x / tiles * kRowsOfTile + threadIdx.x / kThreadsOfWidth * kRowsWrite;
  const unsigned width = width_at(column, job.columns);
  float sums[kRowsWrite][kWidth] = {};
#pragma unroll 1
  for (unsigned k = 0; k < job.product.rank; ++k) {
    float right[kWidth];
    load_four(job.product.right + k * job.columns + column, width, right);
#pragma unroll
    for (unsigned r = 0; r < kRowsWrite; ++r) {
      const float left = row + r < job.rows ? job.product.left[k * job.rows + row + r] : 0.0f;
#pragma unroll
      for (unsigned i = 0; i < kWidth; ++i) sums[r][i] = __fmaf_rn(right[i], left, sums[r][i]);
    }
  }
  // Residuals are read where something is changed in them.
  const bool settles = job.forgets || (job.type != ElementType::f32 && job.rest_times != 0.0f);
  unsigned overflows = 0;
#pragma unroll
  for (unsigned r = 0; r < kRowsWrite; ++r) {
    if (row + r >= job.rows || width == 0) continue;
    const std::uint64_t at = (row + r) * job.columns + column;
    bool fits = job.product.rank == 0;
    if (!fits) {
      fits = true;
#pragma unroll
      for (unsigned i = 0; i < kWidth; ++i) fits = fits && is_finite(rounded(job.type, sums[r][i]));
    }
    if (settles || !fits) overflows += settle_rest(job, at, width, sums[r]);
#pragma unroll
    for (unsigned i = 0; i < kWidth; ++i)
      sums[r][i] = job.product.rank != 0 ? one_nan(sums[r][i]) : tightwire::detail::from_bits(0x7fc00000u);
    store_four(job.out, job.type, at, width, sums[r]);
  }
  if (overflows != 0) atomicAdd(job.overflows, static_cast<unsigned long long>(overflows));
}

Subject of(int rank) { return {"factors", rank}; }

}  // namespace

void load_product_kernels(int rank) {
  load(left_product_kernel, of(rank));
  load(add_product_kernel, of(rank));
  load(right_product_kernel, of(rank));
  load(write_product_kernel, of(rank));
}

void multiply_left(const LeftProductJob& job, int rank, Stream stream) {
  LeftProductJob first = job;
  const std::uint64_t blocks = blocks_of(job.columns);
  if (blocks == 1) first.partial = job.product;
  launch("the left factor", left_product_kernel, first, {(job.rows + kRowsLeft - 1) / kRowsLeft * blocks, kThreadsLeft},
         of(rank), stream);
  if (blocks == 1 || job.rank == 0) return;
  const AddProducts sum{job.partial, job.product, job.rows * job.rank, blocks};
  launch("adding up the left factor", add_product_kernel, sum,
         {(sum.count + kThreadsLeft - 1) / kThreadsLeft, kThreadsLeft}, of(rank), stream);
}
void multiply_right(const RightProductJob& job, int rank, Stream stream) {
  launch("the right factor", right_product_kernel, job,
         {(job.columns + kColumnsRight - 1) / kColumnsRight, kThreadsRight}, of(rank), stream);
}
void write_product(const WriteProductJob& job, int rank, Stream stream) {
  const std::uint64_t tiles = (job.columns + kColumnsWrite - 1) / kColumnsWrite;
  launch("writing the product", write_product_kernel, job,
         {(job.rows + kRowsOfTile - 1) / kRowsOfTile * tiles, kThreadsWrite}, of(rank), stream);
}

}  // namespace tightwire::cuda::detail
