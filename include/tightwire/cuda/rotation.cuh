#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/cuda/job.cuh>
#include <tightwire/detail/bits.hpp>

namespace tightwire::cuda::detail {

/// Elements that are transformed together. `size` 0: they stay as they are.
struct Piece {
  unsigned begin, size;
};
/// The piece in which element `i` of a tile lies: whole blocks, then what is left in smaller powers of two, the largest
/// first, down to 16.
__device__ inline Piece piece_of(unsigned i, unsigned count, unsigned size) {
  const unsigned whole = count / size * size;
  if (i < whole) return {i / size * size, size};
  unsigned begin = whole;
#pragma unroll 1
  for (unsigned smaller = size / 2; smaller >= 16; smaller /= 2) {
    if (((count - whole) & smaller) == 0) continue;
    if (i < begin + smaller) return {begin, smaller};
    begin += smaller;
  }
  return {begin, 0};
}

/// See host::Rotation, which the order of additions is from. In shared memory, in place; begins and ends with a
/// barrier.
__device__ inline void rotate(float* x, unsigned count, const Rotation& rotation, bool forward) {
  using tightwire::detail::from_bits, tightwire::detail::to_bits;
  // On the way there scale and signs come first, on the way back the signs last.
  const auto scale_and_turn = [&](bool scales, bool turns) {
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < count; i += kThreads) {
      const Piece piece = piece_of(i, count, rotation.size);
      if (piece.size == 0) continue;
      const int k = 31 - __clz(static_cast<int>(piece.size));
      const int halvings = forward ? (k + 1) / 2 : k / 2;
      const unsigned place = i - piece.begin;
      const std::uint32_t turn = turns ? rotation.signs[place / 32] >> place % 32 << 31 : 0;
      const float scale = scales ? from_bits(static_cast<std::uint32_t>(127 - halvings) << 23) : 1.0f;
      x[i] = from_bits(to_bits(x[i] * scale) ^ turn);
    }
  };
  __syncthreads();
  scale_and_turn(true, forward);
#pragma unroll 1
  for (unsigned stride = 1; stride < rotation.size; stride *= 2) {
    __syncthreads();
#pragma unroll 1
    for (unsigned pair = threadIdx.x; pair < count / 2; pair += kThreads) {
      const unsigned i = pair / stride * 2 * stride + pair % stride;
      if (i >= count || piece_of(i, count, rotation.size).size <= stride) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  __syncthreads();
  if (forward) return;
  scale_and_turn(false, true);
  __syncthreads();
}

}  // namespace tightwire::cuda::detail
