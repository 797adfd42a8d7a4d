#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <tightwire/detail/philox.hpp>

namespace tightwire::sparse {

/// Where the sample of a threshold begins.
struct SampleSeed {
  std::uint64_t seed = 0;
  std::uint32_t use = 0;
  std::uint32_t stream = 0;
};
/// What a rank adds to the number of a group's first parameter for a stream of its own.
constexpr std::uint32_t rank_word(int rank) { return static_cast<std::uint32_t>(rank + 1) * 0x9e3779b9u; }

/// Places of elements that are chosen from together: one of each of `count` equal runs, which `place` tells.
struct Sample {
  static constexpr std::size_t kLeast = 1024, kMost = std::size_t{1} << 16;
  std::size_t elements, count;
  std::size_t begin;  ///< below `elements`

  Sample(std::size_t of, const SampleSeed& seed)
      : elements(of), count(std::min(std::max(of / 100, kLeast), std::min(kMost, of))) {
    const auto random =
        tightwire::detail::Philox::at({0, 0, seed.use, seed.stream}, static_cast<std::uint32_t>(seed.seed),
                                      static_cast<std::uint32_t>(seed.seed >> 32));
    begin = random.words[0] % elements;
  }
  std::size_t place(std::size_t i) const { return (begin + i * elements) / count; }
  /// How many of the sample lie before a place.
  std::size_t before(std::size_t place) const {
    const std::size_t reach = place * count;
    return reach <= begin ? 0 : std::min(count, (reach - begin + elements - 1) / elements);
  }
  /// How many of the sample are expected among the k largest of the elements.
  std::size_t expected(std::size_t k) const {
    const double share = static_cast<double>(k) / static_cast<double>(elements);
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(count)));
    return std::clamp<std::size_t>(rank, 1, count);
  }
};

/// Whether so many elements reach the threshold of a sample that they can be taken for the k largest.
constexpr bool about_right(std::size_t found, std::size_t k) {
  constexpr double kLeastShare = 0.8, kMostShare = 1.3;
  const double share = static_cast<double>(found) / static_cast<double>(k);
  return share >= kLeastShare && share <= kMostShare;
}

}  // namespace tightwire::sparse
