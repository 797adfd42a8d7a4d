#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tightwire/host/nonfinite.hpp>
#include <tightwire/sparse/section.hpp>

namespace tightwire::sparse {

/// Sums entries of several ranks, in rank order, in fp32. Goes through the elements in windows that stay in cache, so
/// that the cost is that of the entries, and memory is the same for any number of elements.
class RangeSum {
 public:
  RangeSum() : sums_(kWindow, kNothing), present_(kWindow / 64) {}

  /// `sum` gets an entry for every element that some rank has one of. NaN is given one pattern of bits.
  void add_up(std::span<const Entries> ranks, std::size_t elements, Entries& sum) {
    next_.assign(ranks.size(), 0);
    std::size_t most = 0;
    for (const Entries& entries : ranks) most += entries.size();
    sum.resize(std::min(most, elements));
    std::size_t found = 0;
    for (std::size_t window = 0; window < elements && most != 0; window += kWindow) {
      const std::size_t end = std::min(window + kWindow, elements);
      for (std::size_t r = 0; r < ranks.size(); ++r) most -= add(ranks[r], next_[r], window, end);
      for (std::size_t word = 0; word < (end - window + 63) / 64; ++word) {
        for (std::uint64_t bits = std::exchange(present_[word], 0); bits != 0; bits &= bits - 1) {
          const std::size_t i = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
          sum.indices[found] = static_cast<std::uint32_t>(window + i);
          const float x = std::exchange(sums_[i], kNothing);
          sum.values[found++] = x != x ? tightwire::detail::from_bits(0x7fc00000u) : x;
        }
      }
    }
    sum.resize(found);
  }

 private:
  static constexpr std::size_t kWindow = std::size_t{1} << 15;
  /// What leaves every number as it is when added to it, negative zero too.
  static constexpr float kNothing = -0.0f;

  /// Entries below `end`; returns how many.
  std::size_t add(const Entries& entries, std::size_t& next, std::size_t window, std::size_t end) {
    const std::size_t first = next;
    for (; next < entries.size() && entries.indices[next] < end; ++next) {
      const std::size_t i = entries.indices[next] - window;
      sums_[i] += entries.values[next];
      present_[i / 64] |= std::uint64_t{1} << i % 64;
    }
    return next - first;
  }

  std::vector<float> sums_;
  std::vector<std::uint64_t> present_;
  std::vector<std::size_t> next_;
};

}  // namespace tightwire::sparse
