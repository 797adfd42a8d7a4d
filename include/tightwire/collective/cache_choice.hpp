#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tightwire {

/// Whether frames that another core reads are better written past the caches. Cores that share a cache hand a line over
/// in it; between cores that do not, memory is twice as fast, since a line is fetched out of the other core's cache and
/// taken back from there before it is written again. Where ranks run is seldom known and may change, so every now and
/// then a few reductions try both. Bytes do not depend on it, and ranks need not agree.
class CacheChoice {
 public:
  /// For the reduction that comes next.
  bool past_cache() const { return trying() ? use_ % 2 == 0 : past_cache_; }

  /// How long it took.
  void took(double seconds) {
    if (trying()) best_[past_cache() ? 1 : 0] = std::min(best_[past_cache() ? 1 : 0], seconds);
    use_ = (use_ + 1) % kPeriod;
    if (use_ != kTrials) return;
    past_cache_ = best_[1] <= best_[0] * kClearly;
    best_ = kNone;
  }

 private:
  static constexpr std::uint32_t kTrials = 8;
  static constexpr std::uint32_t kPeriod = 512;
  /// By how much writing past the caches may be slower and is taken all the same.
  static constexpr double kClearly = 1.02;
  static constexpr std::array<double, 2> kNone = {std::numeric_limits<double>::infinity(),
                                                  std::numeric_limits<double>::infinity()};

  bool trying() const { return use_ < kTrials; }

  std::uint32_t use_ = 0;
  bool past_cache_ = true;
  std::array<double, 2> best_ = kNone;  ///< seconds, of both ways
};

}  // namespace tightwire
