#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <tightwire/detail/bits.hpp>

namespace tightwire::sparse {

/// Elements in the order of their magnitudes: the bits of |x|. NaN comes above infinity, and zero last.
inline std::uint32_t magnitude_key(float x) {
  return tightwire::detail::to_bits(x) & tightwire::detail::kMagnitudeMask;
}

/// Finds the k-th largest magnitude and keeps what is at least as large. Keeps its own memory from call to call.
class Largest {
 public:
  /// Key of the k-th largest of `count` values, 1 <= k <= count. Cost: two passes over keys and a selection within a
  /// 4096th of their span.
  std::uint32_t key_of(const float* values, std::size_t count, std::size_t k) {
    std::uint32_t low = 0xffffffffu, high = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t key = magnitude_key(values[i]);
      low = std::min(low, key);
      high = std::max(high, key);
    }
    const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - kBits);
    bins_.fill(0);
    for (std::size_t i = 0; i < count; ++i) ++bins_[(magnitude_key(values[i]) - low) >> shift];
    std::size_t above = 0, bin = (high - low) >> shift;
    while (above + bins_[bin] < k) above += bins_[bin--];
    if (shift == 0) return low + static_cast<std::uint32_t>(bin);
    keys_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t key = magnitude_key(values[i]);
      if ((key - low) >> shift == bin) keys_.push_back(key);
    }
    const auto nth = keys_.begin() + static_cast<std::ptrdiff_t>(k - above - 1);
    std::nth_element(keys_.begin(), nth, keys_.end(), std::greater<>{});
    return *nth;
  }

  /// Keeps the k largest in front, in their order; of equal magnitudes those that stand first. `drop(place, value)` is
  /// called for those that go and reach `drop_key`. Returns the key of the least that was kept.
  template <class Drop>
  std::uint32_t keep(float* values, std::uint32_t* places, std::size_t count, std::size_t k, std::uint32_t drop_key,
                     const Drop& drop) {
    const std::uint32_t least = key_of(values, count, k);
    std::size_t above = 0;
    for (std::size_t i = 0; i < count; ++i) above += magnitude_key(values[i]) > least ? 1 : 0;
    std::size_t ties = k - above, kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t key = magnitude_key(values[i]);
      const bool tie = key == least && ties != 0;
      const bool keeps = key > least || tie;
      if (!keeps && key >= drop_key) drop(places[i], values[i]);
      ties -= tie ? 1 : 0;
      values[kept] = values[i];
      places[kept] = places[i];
      kept += keeps ? 1 : 0;
    }
    return least;
  }

 private:
  static constexpr int kBits = 12;
  std::array<std::uint32_t, (std::size_t{1} << kBits) + 1> bins_{};
  std::vector<std::uint32_t> keys_;
};

}  // namespace tightwire::sparse
