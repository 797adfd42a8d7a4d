#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/codec/concept.hpp>
#include <tightwire/cuda/access.cuh>
#include <tightwire/cuda/job.cuh>
#include <tightwire/cuda/noise.cuh>
#include <tightwire/cuda/quantize.cuh>
#include <tightwire/cuda/rotation.cuh>
#include <tightwire/cuda/scales.cuh>
#include <tightwire/cuda/workspace.cuh>

// One kernel for each verb of a coder; a CUDA block works on one tile, which lives in shared memory.

namespace tightwire::cuda::detail {

extern __shared__ uint4 shared_memory[];

struct TileOf {
  std::size_t begin;
  unsigned count;
  __device__ explicit TileOf(const Shape& shape) : begin(static_cast<std::size_t>(blockIdx.x) * shape.tile) {
    const std::size_t left = shape.count - begin;
    count = left < shape.tile ? static_cast<unsigned>(left) : shape.tile;
  }
  __device__ unsigned valid(unsigned first) const { return count - first < kGranule ? count - first : kGranule; }
};
/// `step(first element, elements)` for the granules of this thread, which are the same in every loop.
template <class Step>
__device__ void for_granules(const TileOf& tile, const Step& step) {
#pragma unroll 1
  for (unsigned first = threadIdx.x * kGranule; first < tile.count; first += kThreads * kGranule)
    step(first, tile.valid(first));
}

template <BlockCodec C>
__device__ Workspace<C> workspace(const Shape& shape) {
  Carver carver{reinterpret_cast<std::byte*>(shared_memory)};
  Workspace<C> work(shape, carver);
  work.noise = reinterpret_cast<std::uint16_t*>(reinterpret_cast<std::byte*>(shared_memory) + work.noise_at);
  return work;
}
/// Before a tile, or the sum after our own contribution: nothing is counted yet.
template <BlockCodec C>
__device__ void begin_tile(const Workspace<C>& work, const Shape& shape, unsigned count) {
  for (unsigned p = threadIdx.x; p * shape.part < count; p += kThreads) work.nonfinite_input[p] = 0;
  if (threadIdx.x < 4) work.counters[threadIdx.x] = 0;
}

__device__ inline Feedback advanced(const Feedback& feedback, std::size_t by) {
  return feedback.after != nullptr ? Feedback{feedback.before + by, feedback.after + by} : Feedback{};
}
/// What is in shared memory of an encoded tile goes to where it belongs on the wire, the last with the padding.
template <BlockCodec C>
__device__ void write_wire(const Workspace<C>& work, const Shape& shape, const TileOf& tile, std::byte* wire) {
  constexpr std::size_t kShared = host::kSharedBytes<C>, kParam = host::kParamBytes<C>;
  const unsigned parts = (tile.count + shape.part - 1) / shape.part;
  const unsigned blocks = (tile.count + shape.block - 1) / shape.block;
  copy_out(work.params, wire + tile.begin / shape.block * (kShared + shape.parts_per_block * kParam),
           blocks * kShared + parts * kParam);
  if constexpr (base_of<C> != 0)
    write_digits<base_of<C>, C::bits>(
        work.codes, tile.count, shape.block,
        wire + shape.codes_at + tile.begin / shape.block * tightwire::detail::digit_bytes(base_of<C>, shape.block));
  else
    copy_out(work.codes, wire + shape.codes_at + tile.begin * C::bits / 8,
             (static_cast<std::size_t>(tile.count) * C::bits + 7) / 8);
  if (tile.begin + tile.count < shape.count) return;
  clear(wire + shape.params, shape.codes_at - shape.params);
  clear(wire + shape.codes_at + shape.codes, shape.bytes - shape.codes_at - shape.codes);
}

__device__ inline std::size_t bytes_of(ElementType type) { return type == ElementType::f32 ? 4 : 2; }
__device__ inline void settle_nans(float* x, unsigned count) {
  for (unsigned i = threadIdx.x; i < count; i += kThreads) x[i] = one_nan(x[i]);
}

__device__ inline void add_to(unsigned long long* counter, unsigned number) {
  if (counter != nullptr && number != 0) atomicAdd(counter, static_cast<unsigned long long>(number));
}

template <BlockCodec C>
__global__ void __launch_bounds__(kThreads, 4) encode_kernel(const __grid_constant__ EncodeJob job) {
  const Workspace<C> work = workspace<C>(job.shape);
  const TileOf tile(job.shape);
  const Feedback residual = advanced(job.residual, tile.begin);
  begin_tile(work, job.shape, tile.count);
  load_elements(work.x, tile.count, job.type, job.data + tile.begin * bytes_of(job.type));
  if (job.rotation.size != 0) rotate(work.x, tile.count, job.rotation, true);
  __syncthreads();
  if (residual.after != nullptr) add_elements(work.x, tile.count, residual.before);
  const std::uint16_t* const noise =
      job.noise.given ? make_noise(job.noise, tile.begin, tile.count, work.noise) : nullptr;
  __syncthreads();
  find_scales(work, job.shape, tile.count, job.noise.given);
  add_to(job.nonfinite, quantize(work, job.shape, tile.count, {noise, ElementType::f32, true}));
  __syncthreads();
  if (residual.after != nullptr) store_residual(work.differences, tile.count, residual);
  write_wire(work, job.shape, tile, job.wire);
}

template <BlockCodec C>
__global__ void __launch_bounds__(kThreads, 4) decode_kernel(const __grid_constant__ DecodeJob job) {
  const TileOf tile(job.shape);
  float* const x = reinterpret_cast<float*>(shared_memory);
  for_granules(tile, [&](unsigned first, unsigned valid) {
    float values[kGranule];
    decode_granule<C>(job.shape, job.wire, tile.begin + first, valid, values);
    store_floats(x + first, values);
  });
  if (job.rotation.size != 0) {
    rotate(x, tile.count, job.rotation, false);
    settle_nans(x, tile.count);
  }
  __syncthreads();
  store_elements(x, tile.count, job.type, job.out + tile.begin * bytes_of(job.type));
}

}  // namespace tightwire::cuda::detail
