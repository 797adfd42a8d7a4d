#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tightwire/detail/lanes.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/noise.hpp>

namespace tightwire::host {

/// What is read of elements after their noise was made. Making it takes so long that memory may bring them in between.
struct Ahead {
  const float* x = nullptr;
  const float* added = nullptr;
};

/// The noise of `groups` groups of 128 elements, from group `first` on; as integers, the random bits it is made of.
template <class T>
struct MakeNoise {
  struct Job {
    const Noise* noise;
    std::uint64_t first;
    std::size_t groups;
    T* out;
    Ahead ahead = {};
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    // Two at a time, since each waits for its own multiplications.
    constexpr int kSets = static_cast<int>(detail::kNoiseCalls) / W > 1 ? 1 : 2;
    std::size_t g = 0;
    for (; g + kSets <= job.groups; g += kSets) groups<W, kSets>(job, g);
    for (; g < job.groups; ++g) groups<W, 1>(job, g);
  }

 private:
  template <int W>
  TIGHTWIRE_INLINE static detail::Lanes<T, W> number(const detail::Lanes<int, W>& bits) {
    if constexpr (std::is_same_v<T, float>)
      return detail::centered(bits);
    else
      return bits;
  }
  template <int W, int Sets>
  TIGHTWIRE_INLINE static void groups(const Job& job, std::size_t g) {
    using Words = detail::Lanes<std::uint32_t, W>;
    const Noise& noise = *job.noise;
    const std::uint64_t call = (job.first + g) * detail::kNoiseCalls;
    Words lane;
    for (int i = 0; i < W; ++i) lane.v[i] = static_cast<std::uint32_t>(i);
    for (int at = 0; at < static_cast<int>(detail::kNoiseCalls); at += W) {
      for (int line = 0; line < 8 * Sets * W / 16; ++line) {
        const std::size_t element = g * detail::kNoiseGroup + static_cast<std::size_t>(8 * Sets * at + 16 * line);
        if (job.ahead.x != nullptr) detail::prefetch(job.ahead.x + element);
        if (job.ahead.added != nullptr) detail::prefetch(job.ahead.added + element);
      }
      Words c[Sets][4];
      for (int set = 0; set < Sets; ++set) {
        const std::uint64_t first = call + static_cast<std::uint64_t>(set) * detail::kNoiseCalls;
        c[set][0] = lane + Words(static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(at));
        c[set][1] = Words(static_cast<std::uint32_t>(first >> 32));
        c[set][2] = Words(noise.use);
        c[set][3] = Words(noise.parameter);
      }
      std::uint32_t key0 = detail::noise_key(noise, 0), key1 = detail::noise_key(noise, 1);
      TIGHTWIRE_UNROLL(10)
      for (int round = 0; round < detail::Philox::rounds; ++round) {
        TIGHTWIRE_UNROLL(2)
        for (int set = 0; set < Sets; ++set) {
          Words high_a, low_a, high_b, low_b;
          multiply_wide(c[set][0], detail::Philox::multipliers[0], high_a, low_a);
          multiply_wide(c[set][2], detail::Philox::multipliers[1], high_b, low_b);
          c[set][0] = high_b ^ c[set][1] ^ Words(key0);
          c[set][1] = low_b;
          c[set][2] = high_a ^ c[set][3] ^ Words(key1);
          c[set][3] = low_a;
        }
        key0 += detail::Philox::weyl[0];
        key1 += detail::Philox::weyl[1];
      }
      TIGHTWIRE_UNROLL(2)
      for (int set = 0; set < Sets; ++set) {
        T* out = job.out + (g + static_cast<std::size_t>(set)) * detail::kNoiseGroup + at;
        TIGHTWIRE_UNROLL(4)
        for (int word = 0; word < 4; ++word) {
          number(as_int(c[set][word] & Words(0xffffu))).store(out + 16 * word);
          number(as_int(c[set][word] >> 16)).store(out + 64 + 16 * word);
        }
      }
    }
  }
};

/// The noise of `count` elements of a slice from element `begin` on; null where there is none. `memory` has room for
/// two groups more.
inline const float* noise_of(Level level, const Noise* noise, std::size_t begin, std::size_t count, float* memory,
                             const Ahead& ahead = {}) {
  if (noise == nullptr) return nullptr;
  const std::uint64_t from = noise->first + begin;
  const std::uint64_t first = from / detail::kNoiseGroup;
  const std::uint64_t end = (from + count + detail::kNoiseGroup - 1) / detail::kNoiseGroup;
  run<MakeNoise<float>>(level, {noise, first, static_cast<std::size_t>(end - first), memory, ahead});
  return memory + from % detail::kNoiseGroup;
}

}  // namespace tightwire::host
