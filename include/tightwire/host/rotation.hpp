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
  struct Transform {
    struct Job {
      float* x;
      std::size_t count;  ///< a power of two
      const float* signs;
      float scale;
      bool forward;
    };
    template <int W>
    TIGHTWIRE_INLINE static void run(const Job& job) {
      using Floats = detail::Lanes<float, W>;
      for (std::size_t i = 0; i < job.count; i += W) {
        Floats x = Floats::load(job.x + i) * Floats(job.scale);
        if (job.forward) x = x * Floats::load(job.signs + i);
        x.store(job.x + i);
      }
      detail::walsh_hadamard<W>(job.x, job.count);
      if (job.forward) return;
      for (std::size_t i = 0; i < job.count; i += W)
        (Floats::load(job.x + i) * Floats::load(job.signs + i)).store(job.x + i);
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
      run<Transform>(level, {x + at, size, signs_.data(), scale(size, forward), forward});
      at += size;
    }
  }

  std::vector<float> signs_;
};

}  // namespace tightwire::host
