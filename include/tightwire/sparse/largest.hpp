#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include <tightwire/host/find_large.hpp>

namespace tightwire::sparse {

/// Elements in the order of their magnitudes: the bits of |x|. NaN comes above infinity, and zero last.
inline std::uint32_t magnitude_key(float x) {
  return tightwire::detail::to_bits(x) & tightwire::detail::kMagnitudeMask;
}

/// What the k largest are kept of.
struct Candidates {
  float* values;
  std::uint32_t* places;
  std::size_t count;
};

/// Values with their places, of which the k largest are kept, in their order; of equal magnitudes those that stand
/// first. Keeps its own memory from call to call.
class Largest {
 public:
  explicit Largest(host::Level level = host::level()) : level_(level) {}

  /// Takes memory for so many values, so that no call need do it.
  void reserve(std::size_t count) { keys_.reserve(count); }

  /// Key of the k-th largest of `count` values, 1 <= k <= count.
  std::uint32_t key_of(const float* values, std::size_t count, std::size_t k) {
    std::uint32_t low = 0xffffffffu, high = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t key = magnitude_key(values[i]);
      low = std::min(low, key);
      high = std::max(high, key);
    }
    const Bin bin = bin_of(values, count, k, low, std::max(0, static_cast<int>(std::bit_width(high - low)) - kBits));
    keys_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t key = magnitude_key(values[i]);
      if (key >= bin.begin && key <= bin.last) keys_.push_back(key);
    }
    const auto nth = keys_.begin() + static_cast<std::ptrdiff_t>(k - bin.above - 1);
    std::nth_element(keys_.begin(), nth, keys_.end(), std::greater<>{});
    return *nth;
  }

  /// Keeps the k largest in front. `drop(place, value)` is called for those that go and reach `drop_key`. Returns the
  /// key of the least that was kept.
  template <class Drop>
  std::uint32_t keep(const Candidates& from, std::size_t k, std::uint32_t drop_key, const Drop& drop) {
    float* const values = from.values;
    std::uint32_t* const places = from.places;
    const std::size_t count = from.count;
    const std::uint32_t least = key_of(values, count, k);
    std::size_t above = 0;
    for (std::size_t i = 0; i < count; ++i) above += magnitude_key(values[i]) > least ? 1 : 0;
    std::size_t ties = k - above, kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t key = magnitude_key(values[i]);
      const bool tie = key == least && ties != 0;
      const bool keeps = key > least || tie;
      if (key >= drop_key && !keeps) drop(places[i], values[i]);
      ties -= tie ? 1 : 0;
      values[kept] = values[i];
      places[kept] = places[i];
      kept += keeps ? 1 : 0;
    }
    return least;
  }

  /// As `keep`, for more values than k of which all keys are at least `low` and few much larger, and where few reach
  /// `drop_key`: about a nanosecond per value.
  template <class Drop>
  std::uint32_t keep_near(const Candidates& from, std::size_t k, std::uint32_t low, std::uint32_t drop_key,
                          const Drop& drop) {
    float* const values = from.values;
    std::uint32_t* const places = from.places;
    const std::size_t count = from.count;
    // An octave's worth of bins; what is larger goes into the last.
    const Bin bin = bin_of(values, count, k, low, 23 - kBits);
    const bool may_drop = bins_.back() != 0 || drop_key < low || drop_key - low < (kOctave - 1);
    if (bin.last == kOpen ||
        (may_drop && std::any_of(values, values + count, [&](float x) { return magnitude_key(x) >= drop_key; })))
      return keep(from, k, drop_key, drop);
    std::size_t kept = host::run<host::KeepLarge>(level_, {values, places, count, bin.begin});
    keys_.clear();
    for (std::size_t i = 0; i < kept; ++i)
      if (magnitude_key(values[i]) <= bin.last) keys_.push_back(static_cast<std::uint32_t>(i));
    // The least of the last bin go, of equals the last.
    const std::size_t excess = kept - k;
    const auto goes_before = [&](std::uint32_t a, std::uint32_t b) {
      const std::uint32_t key_a = magnitude_key(values[a]), key_b = magnitude_key(values[b]);
      return key_a != key_b ? key_a < key_b : a > b;
    };
    const auto gone = keys_.begin() + static_cast<std::ptrdiff_t>(excess);
    std::nth_element(keys_.begin(), gone, keys_.end(), goes_before);
    const std::uint32_t least = magnitude_key(values[*std::min_element(gone, keys_.end(), goes_before)]);
    std::sort(keys_.begin(), gone);
    close_gaps(values, kept, excess);
    close_gaps(places, kept, excess);
    return least;
  }

 private:
  static constexpr int kBits = 12;
  static constexpr std::uint32_t kOctave = std::uint32_t{1} << 23;
  static constexpr std::uint32_t kOpen = 0xffffffffu;

  /// The bin that the k-th largest falls into, and how many are above it.
  struct Bin {
    std::uint32_t begin, last;
    std::size_t above;
  };
  Bin bin_of(const float* values, std::size_t count, std::size_t k, std::uint32_t low, int shift) {
    constexpr std::uint32_t kLast = (std::uint32_t{1} << kBits) - 1;
    bins_.fill(0);
    for (std::size_t i = 0; i < count; ++i) ++bins_[std::min((magnitude_key(values[i]) - low) >> shift, kLast)];
    std::size_t above = 0;
    std::uint32_t bin = kLast;
    while (above + bins_[bin] < k) above += bins_[bin--];
    const std::uint32_t begin = low + (bin << shift);
    return {begin, bin == kLast ? kOpen : begin + (std::uint32_t{1} << shift) - 1, above};
  }

  /// Takes the first `excess` of keys_, ascending, out of an array.
  template <class T>
  void close_gaps(T* all, std::size_t count, std::size_t excess) const {
    for (std::size_t gap = 0; gap < excess; ++gap) {
      const std::size_t from = keys_[gap] + std::size_t{1}, to = gap + 1 < excess ? keys_[gap + 1] : count;
      std::memmove(all + from - gap - 1, all + from, (to - from) * sizeof(T));
    }
  }

  host::Level level_;
  std::array<std::uint32_t, std::size_t{1} << kBits> bins_{};
  std::vector<std::uint32_t> keys_;
};

}  // namespace tightwire::sparse
