#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tightwire/detail/philox.hpp>
#include <tightwire/detail/walsh_hadamard.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

/// The randomized Hadamard transform of blocks of `size` elements: random signs, then Walsh-Hadamard, scaled to keep
/// lengths. What is left of a parameter after its last whole block is transformed in smaller powers of two, the largest
/// first, down to 16; fewer than 16 elements stay as they are. So the count of elements stays what it is.
class Rotation {
 public:
  /// None.
  Rotation() = default;
  /// `size` is a power of two from 32 to 4096. The signs are Philox's bits under the key `seed`: element e of a block
  /// takes bit e % 32 of word e / 32 % 4 of call e / 128, and is turned around where it is set.
  Rotation(std::size_t size, std::uint64_t seed) : signs_(size) {
    for (std::size_t i = 0; i < size; ++i) {
      const auto random = detail::Philox::at({static_cast<std::uint32_t>(i / 128), 0, 0, 0},
                                             static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
      signs_[i] = (random.words[i / 32 % 4] >> i % 32 & 1u) != 0 ? -1.0f : 1.0f;
    }
  }

  explicit operator bool() const { return !signs_.empty(); }
  std::size_t size() const { return signs_.size(); }

  /// Of elements that begin on a block.
  void forward(Level level, float* x, std::size_t count) const { transform(level, x, count, true); }
  void inverse(Level level, float* x, std::size_t count) const { transform(level, x, count, false); }

 private:
  struct TransformJob {
    float* x;
    std::size_t count;  ///< of whole blocks
    std::size_t size;   ///< of a block
    const float* signs;
    float scale;
  };
  template <bool Forward>
  struct Transform {
    using Job = TransformJob;
    template <int W>
    TIGHTWIRE_INLINE static void run(const Job& given) {
      using Floats = detail::Lanes<float, W>;
      const Job job{in_register(given.x), in_register(given.count), in_register(given.size), in_register(given.signs),
                    given.scale};
      const auto before = [&](std::size_t i, Floats& x) TIGHTWIRE_LAMBDA_INLINE {
        x = x * Floats(job.scale);
        if constexpr (Forward) x = x * Floats::load(job.signs + i);
      };
      const auto after = [&](std::size_t i, Floats& x) TIGHTWIRE_LAMBDA_INLINE {
        if constexpr (!Forward) x = x * Floats::load(job.signs + i);
      };
      for (float* x = job.x; x < job.x + job.count; x += job.size) {
        if (job.size == 2 * W) {  // in registers
          Floats a = Floats::load(x), b = Floats::load(x + W);
          before(0, a), before(W, b);
          detail::butterflies(a), detail::butterflies(b);
          Floats sum = a + b, difference = a - b;
          after(0, sum), after(W, difference);
          sum.store(x), difference.store(x + W);
          continue;
        }
        detail::walsh_hadamard<W>(x, job.size, before);
        if constexpr (Forward) continue;
        for (std::size_t i = 0; i < job.size; i += W) {
          Floats v = Floats::load(x + i);
          after(i, v);
          v.store(x + i);
        }
      }
    }
  };

  /// Powers of two whose product undoes the transform applied twice, so that scaling rounds nothing: for 2^k elements
  /// 2^-ceil(k/2) on the way there and 2^-floor(k/2) on the way back, both before the additions, which then overflow
  /// only where the result does, or nearly.
  static float scale(std::size_t count, bool forward) {
    const int k = std::countr_zero(count);
    return 1.0f / static_cast<float>(1 << (forward ? (k + 1) / 2 : k / 2));
  }
  void transform(Level level, float* x, std::size_t count, bool forward) const {
    for (std::size_t at = 0; count - at >= 16;) {
      const std::size_t size = std::min(signs_.size(), std::bit_floor(count - at));
      const std::size_t whole = size == signs_.size() ? (count - at) / size * size : size;
      const TransformJob job{x + at, whole, size, signs_.data(), scale(size, forward)};
      forward ? run<Transform<true>>(level, job) : run<Transform<false>>(level, job);
      at += whole;
    }
  }

  std::vector<float> signs_;
};

}  // namespace tightwire::host
