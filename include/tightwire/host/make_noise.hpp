#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tightwire/detail/lanes.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/loops.hpp>
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
    Keys<W> keys;
    std::uint32_t key0 = detail::noise_key(*job.noise, 0), key1 = detail::noise_key(*job.noise, 1);
    for (auto& [of_first, of_second] : keys) {
      of_first = detail::Lanes<std::uint32_t, W>(key0);
      of_second = detail::Lanes<std::uint32_t, W>(key1);
      key0 += detail::Philox::weyl[0];
      key1 += detail::Philox::weyl[1];
    }
    std::size_t g = 0;
    for (; g + kSets <= job.groups; g += kSets) groups<W, kSets>(job, keys, g);
    for (; g < job.groups; ++g) groups<W, 1>(job, keys, g);
  }

 private:
  /// Of the rounds, in memory: there are more than registers.
  template <int W>
  using Keys = detail::Lanes<std::uint32_t, W>[detail::Philox::rounds][2];

  /// The lower halves of words, and the upper ones.
  template <int W>
  TIGHTWIRE_INLINE static void store(const detail::Lanes<std::uint32_t, W>& words, T* lower, T* upper) {
    using Words = detail::Lanes<std::uint32_t, W>;
    if constexpr (std::is_same_v<T, float>) {
      // detail::centered: as a fraction of 1 to 2, in an instruction less than by a conversion.
      const Words fraction(0x7fff80u), one(detail::to_bits(1.0f));
      const detail::Lanes<float, W> middle(1.5f - 0x1p-17f);
      (from_bits((words << 7 & fraction) | one) - middle).store(lower);
      (from_bits((words >> 9 & fraction) | one) - middle).store(upper);
    } else {
      (words & Words(0xffffu)).store(lower);
      (words >> 16).store(upper);
    }
  }
  template <int W, int Sets>
  TIGHTWIRE_INLINE static void groups(const Job& job, const Keys<W>& keys, std::size_t g) {
    using Words = detail::Lanes<std::uint32_t, W>;
    const Noise& noise = *job.noise;
    const std::uint64_t call = (job.first + g) * detail::kNoiseCalls;
    Words lane;
    for (int i = 0; i < W; ++i) lane.v[i] = static_cast<std::uint32_t>(i);
    for (int at = 0; at < static_cast<int>(detail::kNoiseCalls); at += W) {
      const std::size_t element = g * detail::kNoiseGroup + static_cast<std::size_t>(8 * Sets * at);
      for (const float* const from : {job.ahead.x, job.ahead.added}) {
        if (from == nullptr) continue;
        const float* const line = in_register(from + element);
        TIGHTWIRE_UNROLL(16)
        for (int k = 0; k < 8 * Sets * W / 16; ++k) detail::prefetch(line + 16 * k);
      }
      // Even calls and odd ones apart, each in the even elements of a register: what multiplication leaves in the odd
      // ones it does not look at in the next round.
      Words c[2 * Sets][4];
      for (int half = 0; half < 2 * Sets; ++half) {
        const std::uint64_t first = call + static_cast<std::uint64_t>(half / 2) * detail::kNoiseCalls;
        c[half][0] = lane + Words(static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(at + half % 2));
        c[half][1] = Words(static_cast<std::uint32_t>(first >> 32));
        c[half][2] = Words(noise.use);
        c[half][3] = Words(noise.parameter);
      }
      TIGHTWIRE_UNROLL(10)
      for (int round = 0; round < detail::Philox::rounds; ++round) {
        TIGHTWIRE_UNROLL(4)
        for (int half = 0; half < 2 * Sets; ++half) {
          Words a, b, high_a, high_b;
          multiply_even(c[half][0], detail::Philox::multipliers[0], a);
          multiply_even(c[half][2], detail::Philox::multipliers[1], b);
          odd_to_even(a, high_a);
          odd_to_even(b, high_b);
          c[half][0] = high_b ^ c[half][1] ^ keys[round][0];
          c[half][1] = b;
          c[half][2] = high_a ^ c[half][3] ^ keys[round][1];
          c[half][3] = a;
        }
      }
      TIGHTWIRE_UNROLL(2)
      for (int set = 0; set < Sets; ++set) {
        T* out = job.out + (g + static_cast<std::size_t>(set)) * detail::kNoiseGroup + at;
        TIGHTWIRE_UNROLL(4)
        for (int word = 0; word < 4; ++word) {
          Words all;
          join_even(c[2 * set][word], c[2 * set + 1][word], all);
          store(all, out + 16 * word, out + 64 + 16 * word);
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
