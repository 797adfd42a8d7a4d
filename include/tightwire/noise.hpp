#pragma once
#include <cstdint>

#include <tightwire/detail/philox.hpp>

namespace tightwire {

/// Where the numbers of stochastic rounding come from. They depend on these and the place of an element in its
/// parameter, and on nothing else: not on threads, cuts, or the instruction set.
struct Noise {
  std::uint64_t seed = 0;
  std::uint32_t use = 0;        ///< reductions of the parameter before
  std::uint32_t parameter = 0;  ///< its number
  std::uint32_t stream = 0;     ///< 0 for the encoded sum, rank + 1 for a rank's contribution
  std::uint64_t first = 0;      ///< place in the parameter of the slice's first element
};

namespace detail {

// Elements go by groups of 128, for which 16 calls are made; each gives 16 bits to 8 elements. Element e of a group
// takes word e / 16 % 4 of call e % 16, of which the first 64 elements have the lower half and the last 64 the upper.
inline constexpr std::uint64_t kNoiseGroup = 128;
inline constexpr std::uint64_t kNoiseCalls = 16;

constexpr std::uint32_t noise_key(const Noise& noise, int i) {
  return i == 0 ? static_cast<std::uint32_t>(noise.seed) ^ noise.stream * Philox::weyl[0]
                : static_cast<std::uint32_t>(noise.seed >> 32);
}
/// 16 random bits as a number in the middle of one of 65,536 parts of (-1/2, 1/2).
TIGHTWIRE_HD constexpr auto centered(const auto& bits) { return to_float(bits) * 0x1p-16f - (0.5f - 0x1p-17f); }

/// The noise of one element of a parameter.
constexpr float noise_at(const Noise& noise, std::uint64_t element) {
  const std::uint64_t place = element % kNoiseGroup;
  const std::uint64_t call = element / kNoiseGroup * kNoiseCalls + place % 16;
  const Philox random =
      Philox::at({static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(call >> 32), noise.use, noise.parameter},
                 noise_key(noise, 0), noise_key(noise, 1));
  const std::uint32_t word = random.words[place / 16 % 4];
  return centered(static_cast<int>(place < 64 ? word & 0xffffu : word >> 16));
}

}  // namespace detail
}  // namespace tightwire
