#pragma once
#include <cstdint>

#include <tightwire/cuda/job.cuh>
#include <tightwire/noise.hpp>

namespace tightwire::cuda::detail {

/// The random bits of `count` elements of a slice from `begin` on, by whole groups of 128, see noise.hpp. Those of the
/// first element lie at the returned place.
__device__ inline const std::uint16_t* make_noise(const NoiseKey& key, std::size_t begin, unsigned count,
                                                  std::uint16_t* memory) {
  using tightwire::detail::kNoiseCalls, tightwire::detail::kNoiseGroup, tightwire::detail::Philox;
  const std::uint64_t first = key.first + begin;
  const auto skipped = static_cast<unsigned>(first % kNoiseGroup);
  const unsigned calls = (skipped + count + kNoiseGroup - 1) / kNoiseGroup * kNoiseCalls;
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < calls; i += kThreads) {
    const std::uint64_t call = first / kNoiseGroup * kNoiseCalls + i;
    const Philox random =
        Philox::at({static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(call >> 32), key.use, key.parameter},
                   key.key[0], key.key[1]);
    std::uint16_t* const to = memory + i / kNoiseCalls * kNoiseGroup + i % kNoiseCalls;
#pragma unroll
    for (unsigned word = 0; word < 4; ++word) {
      to[16 * word] = static_cast<std::uint16_t>(random.words[word]);
      to[16 * word + 64] = static_cast<std::uint16_t>(random.words[word] >> 16);
    }
  }
  return memory + skipped;
}

}  // namespace tightwire::cuda::detail
