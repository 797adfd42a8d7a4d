#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
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

/// Keys from one up to, but not at, another; at least 1, and at most kAboveAll.
struct Band {
  std::uint32_t low, high;
};
inline constexpr std::uint32_t kAboveAll = 0x80000000u;

/// What is known of keys and of the k-th before it is found.
struct Expectation {
  std::uint32_t least;  ///< no key is less
  std::uint32_t key;    ///< about the k-th; not below `least`
  std::uint32_t error;  ///< from 1 to an octave: how far off it may well be
  std::uint32_t taken;  ///< those from here on are taken for kept already
  std::uint32_t drop;   ///< those from here on must be known where they go
};

/// Values with their places, of which the k largest are kept, in their order; of equal magnitudes those that stand
/// first. Keeps its own memory from call to call.
class Largest {
 public:
  explicit Largest(host::Level level = host::level()) : level_(level) {}

  /// Takes memory for so many values, so that no call need do it.
  void reserve(std::size_t count) {
    keys_.reserve(count + kSlack);
    if (band_.size() >= count + kSlack) return;
    band_.resize(count + kSlack);
    near_.resize(count + kSlack);
  }

  /// Key of the k-th largest of `count` values, 1 <= k <= count.
  std::uint32_t key_of(const float* values, std::size_t count, std::size_t k) {
    keys_.resize(count);
    std::transform(values, values + count, keys_.begin(), magnitude_key);
    const auto [low, high] = std::minmax_element(keys_.begin(), keys_.end());
    return nth_key(k, {*low, *high + 1});
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

  /// As `keep`, for more than k values of which something is known. 0, with all as it was, where the k-th is not within
  /// two octaves of what was expected. Room for 16 more must be behind the end. It reads all values a few times, in
  /// registers, and does no more with most of them. Those that `judge(place, value, kept)` is called for, before
  /// anything has moved, are what goes but reaches `taken` or `drop`, and what is kept but is below `taken`.
  template <class Judge>
  std::uint32_t keep_near(const Candidates& from, std::size_t k, const Expectation& expected, const Judge& judge) {
    const std::uint32_t taken = expected.taken;
    Band near{};
    tightwire::detail::BandCount found;
    for (std::uint32_t reach = expected.error;; reach *= 4) {
      near = {expected.key - std::min(reach, expected.key - expected.least),
              expected.key + std::min(reach, kAboveAll - expected.key)};
      found = find(from, near);
      if (found.above < k && found.above + found.inside >= k) break;
      if (reach >= kOctave) return 0;
    }
    fetch(from, found.inside);
    keys_.resize(found.inside);
    std::transform(near_.begin(), near_.begin() + static_cast<std::ptrdiff_t>(found.inside), keys_.begin(),
                   magnitude_key);
    const std::uint32_t least = nth_key(k - found.above, near);

    const Band judged{std::min({taken, least, expected.drop}), std::max(taken, least + 1)};
    if (judged.low < near.low || judged.high > near.high) {
      found = find(from, judged);
      fetch(from, found.inside);
    }
    judge_band(from, found, {k, least, taken, expected.drop}, judged, judge);
    host::run<host::KeepLarge>(level_, {from.values, from.places, from.count, least});
    return least;
  }

 private:
  struct Cut {
    std::size_t k;
    std::uint32_t least, taken, drop;
  };

  /// Of what was found in a band, those of `judged`.
  template <class Judge>
  void judge_band(const Candidates& from, tightwire::detail::BandCount found, const Cut& cut, Band judged,
                  const Judge& judge) {
    keys_.resize(found.inside + kSlack);  // no longer keys, but indices
    const tightwire::detail::BandCount part =
        host::run<host::FindBand>(level_, {near_.data(), found.inside, judged.low, judged.high, keys_.data()});
    // Of those equal to the least, the first are kept.
    std::size_t ties = cut.k - found.above - part.above;
    for (std::size_t i = 0; i < part.inside; ++i) ties -= magnitude_key(near_[keys_[i]]) > cut.least ? 1 : 0;
    for (std::size_t i = 0; i < part.inside; ++i) {
      const std::uint32_t at = band_[keys_[i]], key = magnitude_key(near_[keys_[i]]);
      const bool tie = key == cut.least && ties != 0, kept = key > cut.least || tie;
      ties -= tie ? 1 : 0;
      if (kept ? key < cut.taken : key >= std::min(cut.taken, cut.drop)) judge(from.places[at], from.values[at], kept);
      if (key == cut.least && !kept) from.values[at] = 0;  // below the least, like all that goes
    }
  }
  static constexpr int kBits = 12;
  static constexpr std::uint32_t kOctave = std::uint32_t{1} << 23;
  static constexpr std::size_t kSlack = 16;

  tightwire::detail::BandCount find(const Candidates& from, Band band) {
    reserve(from.count);
    return host::run<host::FindBand>(level_, {from.values, from.count, band.low, band.high, band_.data()});
  }

  void fetch(const Candidates& from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) near_[i] = from.values[band_[i]];
  }

  /// The k-th largest of keys_, whose order is lost: from bins, of which the one it falls into is sorted out.
  std::uint32_t nth_key(std::size_t k, Band all) {
    const std::uint32_t last = all.high - all.low - 1;
    const int shift = std::max(0, static_cast<int>(std::bit_width(last)) - kBits);
    bins_.fill(0);
    for (const std::uint32_t key : keys_) ++bins_[(key - all.low) >> shift];
    std::uint32_t bin = last >> shift;
    for (; bins_[bin] < k; --bin) k -= bins_[bin];
    std::erase_if(keys_, [&](std::uint32_t key) { return (key - all.low) >> shift != bin; });
    const auto nth = keys_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(keys_.begin(), nth, keys_.end(), std::greater<>{});
    return *nth;
  }

  host::Level level_;
  std::array<std::uint32_t, std::size_t{1} << kBits> bins_{};
  std::vector<std::uint32_t> keys_;
  std::vector<std::uint32_t> band_;  ///< indices
  std::vector<float> near_;          ///< values at these
};

}  // namespace tightwire::sparse
