#pragma once
#include <cstdint>

#include <tightwire/detail/bits.hpp>

namespace tightwire::detail {

/// Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter and a key in, 128
/// random bits out, with no state, so that any element's numbers can be had by themselves. Seven rounds are the fewest
/// with which the authors found nothing wrong (BigCrush).
struct Philox {
  static constexpr std::uint32_t multipliers[2] = {0xd2511f53u, 0xcd9e8d57u};
  static constexpr std::uint32_t weyl[2] = {0x9e3779b9u, 0xbb67ae85u};
  static constexpr int rounds = 7;

  std::uint32_t words[4];

  TIGHTWIRE_HD static constexpr Philox at(const std::uint32_t (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
    std::uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t a = std::uint64_t{multipliers[0]} * c[0];
      const std::uint64_t b = std::uint64_t{multipliers[1]} * c[2];
      const auto high = [](std::uint64_t product) { return static_cast<std::uint32_t>(product >> 32); };
      const std::uint32_t next[4] = {high(b) ^ c[1] ^ key0, static_cast<std::uint32_t>(b), high(a) ^ c[3] ^ key1,
                                     static_cast<std::uint32_t>(a)};
      for (int i = 0; i < 4; ++i) c[i] = next[i];
      key0 += weyl[0];
      key1 += weyl[1];
    }
    return {{c[0], c[1], c[2], c[3]}};
  }
};

}  // namespace tightwire::detail
