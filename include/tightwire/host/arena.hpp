#pragma once
#include <cstddef>

#include <tightwire/host/loops.hpp>

namespace tightwire::host {

/// Memory for the tiles of one call, on its stack. What is taken lies side by side: arrays of their largest size would
/// all begin at the same place of a page, and push each other out of the innermost cache.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  float* floats(std::size_t count) { return reinterpret_cast<float*>(bytes(count * sizeof(float))); }
  std::byte* bytes(std::size_t count) {
    std::byte* at = memory_ + used_;
    used_ += (count + kLine - 1) / kLine * kLine;
    return at;
  }

 private:
  static constexpr std::size_t kLine = 64;
  /// Combining a tile of the largest block: eight arrays of floats, the codes of all sources and of the sum, and
  /// statistics and scales for every sixteen elements.
  static constexpr std::size_t kBytes = kLargestTile * (8 * sizeof(float) + (kMostSources + 1) * 4 + 1) +
                                        kLargestTile / kUnit * (kMostStatBytes + (kMostSources + 1) * kMostScaleBytes) +
                                        32 * kLine;

  std::size_t used_ = 0;
  alignas(kLine) std::byte memory_[kBytes];
};

}  // namespace tightwire::host
