#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/cuda/kernels.cuh>

namespace tightwire::cuda::detail {

/// Magnitude from which fp32 rounds to infinity in a buffer of the type.
__device__ inline int overflow_bits(ElementType type) {
  return type == ElementType::bf16 ? 0x7f7f8000 : type == ElementType::f16 ? 0x477ff000 : 0x7f800000;
}
__device__ inline int magnitude_of(float x) {
  return static_cast<int>(tightwire::detail::to_bits(x) & tightwire::detail::kMagnitudeMask);
}
/// Infinity with its sign where a buffer cannot hold a number.
__device__ inline float or_infinity(float x, int overflow) {
  using namespace tightwire::detail;
  return magnitude_of(x) >= overflow && is_finite(x) ? from_bits(kInfinityBits | (to_bits(x) & kSignMask)) : x;
}

/// The sum of all contributions in the order of the ranks, divided, in place of our own, which is in shared memory.
template <BlockCodec C>
__device__ void sum_contributions(const Workspace<C>& work, const CombineJob& job, const TileOf& tile) {
  for_granules(tile, [&](unsigned first, unsigned valid) {
    float sum[kGranule];
#pragma unroll 1
    for (unsigned rank = 0; rank < job.ranks; ++rank) {
      float next[kGranule];
      if (job.sources[rank] == nullptr)
        load_floats(work.x + first, next);
      else
        decode_granule<C>(job.shape, job.sources[rank], tile.begin + first, valid, next);
#pragma unroll
      for (unsigned k = 0; k < kGranule; ++k) sum[k] = rank == 0 ? next[k] : sum[k] + next[k];
    }
    store_floats(work.x + first, sum);
  });
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < tile.count; i += kThreads)
    work.x[i] = job.divides_by_power_of_two ? work.x[i] * job.inverse : work.x[i] / job.divisor;
  __syncthreads();
}

/// Of a sum that a buffer of the wire's own type cannot hold there is no residual: it becomes an infinity.
__device__ inline void overflow_to_infinity(float* x, unsigned count, ElementType type) {
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < count; i += kThreads) x[i] = or_infinity(x[i], overflow_bits(type));
}

/// Elements in shared memory -> the buffer. Returns how many of this thread's it cannot hold.
__device__ inline unsigned put_out(float* x, const CombineJob& job, const TileOf& tile) {
  unsigned overflows = 0;
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < tile.count; i += kThreads) {
    overflows += magnitude_of(x[i]) >= overflow_bits(job.type) ? 1 : 0;
    x[i] = one_nan(x[i]);
  }
  __syncthreads();
  store_elements(x, tile.count, job.type, job.out + tile.begin * bytes_of(job.type));
  return overflows;
}

/// What a buffer of 16 bits rounds off.
__device__ inline void leave_rounding(float* x, unsigned count, ElementType type) {
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    const float held = rounded(type, x[i]);
    const float rest = x[i] - held;
    x[i] = is_finite(held) && is_finite(rest) ? rest : 0.0f;  // what did not arrive is not to be made up for
  }
}
__device__ inline void add_to_residual(const float* x, unsigned count, const Feedback& residual) {
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < count; i += kThreads) residual.after[i] += x[i];
}

/// What is done to a tile in turn, between each two a rotation if there is one: the code of each is there once.
enum class Step : unsigned { own, sum, out, rounding, end };

template <BlockCodec C>
struct Combine {
  const Workspace<C>& work;
  const CombineJob& job;
  const TileOf& tile;

  /// Elements into shared memory.
  __device__ void begin(Step step) const {
    if (step == Step::own) {
      begin_tile(work, job.shape, tile.count);
      load_elements(work.x, tile.count, job.type, job.data + tile.begin * bytes_of(job.type));
    } else if (step == Step::sum) {
      __syncthreads();
      begin_tile(work, job.shape, tile.count);
      sum_contributions(work, job, tile);
    } else if (step == Step::rounding) {
      leave_rounding(work.x, tile.count, job.type);
    }
  }
  /// How elements are to be turned before a step ends: 1 there, -1 back.
  __device__ int rotation(Step step) const {
    if (job.rotation.size == 0 || step == Step::sum) return 0;
    return step == Step::out ? -1 : 1;
  }
  /// Encodes elements, and leaves in their place what they decode to.
  __device__ void encode(bool of_sum) const {
    const Feedback residual = of_sum ? advanced(job.owner, tile.begin) : advanced(job.sender, tile.begin);
    const NoiseKey key = of_sum ? job.owner_noise : job.sender_noise;
    if (residual.after != nullptr) add_elements(work.x, tile.count, residual.before);
    __syncthreads();
    if (of_sum && job.lossless && job.type != ElementType::f32) overflow_to_infinity(work.x, tile.count, job.type);
    const std::uint16_t* const noise = key.given ? make_noise(key, tile.begin, tile.count, work.noise) : nullptr;
    __syncthreads();
    find_scales(work, job.shape, tile.count, key.given);
    const ElementType rounded_to = of_sum && job.rotation.size == 0 ? job.type : ElementType::f32;
    const unsigned nonfinite = quantize(work, job.shape, tile.count, {noise, rounded_to, of_sum});
    if (!of_sum)
      add_to(job.contribution, nonfinite);
    else if (nonfinite != 0)
      atomicAdd(&work.counters[kInCodes], nonfinite);
    __syncthreads();
    if (residual.after != nullptr) store_residual(work.differences, tile.count, residual);
    if (of_sum) write_wire(work, job.shape, tile, job.wire);
  }
  /// To the buffer; what is not finite is counted once.
  __device__ void put_out() const {
    const unsigned overflows = detail::put_out(work.x, job, tile);
    const bool encoded = job.wire != nullptr;
    if (overflows != 0 && (job.rotation.size != 0 || !encoded)) atomicAdd(&work.counters[kInValues], overflows);
    __syncthreads();
    if (threadIdx.x != 0) return;
    const unsigned codes = work.counters[kInCodes], values = work.counters[kInValues];
    const bool both = !encoded || work.counters[kPartsNotFinite] == 0 || job.rotation.size == 0;
    add_to(job.result, both ? codes + values : codes > values ? codes : values);
  }
  __device__ Step next(Step step) const {
    if (step == Step::own) return Step::sum;
    if (step == Step::sum) return Step::out;
    const bool keeps_rounding =
        job.rotation.size != 0 && job.type != ElementType::f32 && job.wire != nullptr && job.owner.after != nullptr;
    return step == Step::out && keeps_rounding ? Step::rounding : Step::end;
  }
};

template <BlockCodec C>
__global__ void __launch_bounds__(kThreads, 4) combine_kernel(const __grid_constant__ CombineJob job) {
  const Workspace<C> work = workspace<C>(job.shape);
  const TileOf tile(job.shape);
  const Combine<C> combine{work, job, tile};
#pragma unroll 1
  for (Step step = job.has_own ? Step::own : Step::sum; step != Step::end; step = combine.next(step)) {
    combine.begin(step);
    if (const int rotation = combine.rotation(step)) rotate(work.x, tile.count, job.rotation, rotation > 0);
    __syncthreads();
    if (step == Step::out)
      combine.put_out();
    else if (step == Step::rounding)
      add_to_residual(work.x, tile.count, advanced(job.owner, tile.begin));
    else if (step == Step::own || job.wire != nullptr)
      combine.encode(step == Step::sum);
    __syncthreads();
  }
}

}  // namespace tightwire::cuda::detail
