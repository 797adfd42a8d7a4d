#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/cuda/job.cuh>

namespace tightwire::cuda::detail {

/// A value of another lane, word by word.
template <class T>
__device__ T from_lane(const T& value, unsigned distance) {
  static_assert(sizeof(T) % 4 == 0, "statistics are a number of whole words");
  struct Words {
    std::uint32_t word[sizeof(T) / 4];
  };
  Words words = __builtin_bit_cast(Words, value);
#pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) words.word[i] = __shfl_xor_sync(0xffffffffu, words.word[i], distance);
  return __builtin_bit_cast(T, words);
}

/// Granules whose values lanes put together among themselves: a power of two up to a warp, of which parts are
/// multiples.
__device__ inline unsigned granules_in_group(unsigned part) {
  unsigned granules = 2;  // a part is a multiple of 16 elements
  while (granules < 32 && part % (2 * granules * kGranule) == 0) granules *= 2;
  return granules;
}

/// For each part `finish(part, value)`, where the value joins `partial(granule)` of all its granules. Values are
/// integers whose order does not matter. All threads of the block take part; `finish` runs in one of them for each
/// part, and what it writes is there for all when this returns.
template <class T, class Partial, class Finish>
__device__ void for_parts(unsigned count, unsigned part, std::byte* memory, const Partial& partial,
                          const Finish& finish) {
  T* const groups = reinterpret_cast<T*>(memory);
  const unsigned granules = (count + kGranule - 1) / kGranule;
  const unsigned in_group = granules_in_group(part);
#pragma unroll 1
  for (unsigned first = 0; first < granules; first += kThreads) {
    const unsigned granule = first + threadIdx.x;
    T value{};
    if (granule < granules) value = partial(granule);
#pragma unroll 1
    for (unsigned distance = 1; distance < in_group; distance *= 2) value.join(from_lane(value, distance));
    if (granule < granules && granule % in_group == 0) groups[granule / in_group] = value;
  }
  __syncthreads();
  const unsigned groups_in_part = part / (kGranule * in_group);
  const unsigned all = (granules + in_group - 1) / in_group;
#pragma unroll 1
  for (unsigned p = threadIdx.x; p * part < count; p += kThreads) {
    const unsigned begin = p * groups_in_part;
    const unsigned end = begin + groups_in_part < all ? begin + groups_in_part : all;
    T value = groups[begin];
#pragma unroll 1
    for (unsigned g = begin + 1; g < end; ++g) value.join(groups[g]);
    finish(p, value);
  }
  __syncthreads();
}

/// Two sums of whole numbers.
struct Sums {
  std::uint32_t first = 0, second = 0;
  __device__ void join(const Sums& other) {
    first += other.first;
    second += other.second;
  }
};

}  // namespace tightwire::cuda::detail
