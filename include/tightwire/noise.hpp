#pragma once
#include <cstdint>

#include <tightwire/detail/philox.hpp>

namespace tightwire {

/// Where the numbers of stochastic rounding come from. They depend on these and the place of an element in its
/// parameter, and on nothing else: not on threads, cuts, or the instruction set.
struct Noise {
  std::uint64_t seed = 0;
  std::uint32_t use = 0;        ///< reductions of the parameter before, in steps that were kept and in this one
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

/// The 16 random bits of one element of a parameter.
constexpr int noise_bits_at(const Noise& noise, std::uint64_t element) {
  const std::uint64_t place = element % kNoiseGroup;
  const std::uint64_t call = element / kNoiseGroup * kNoiseCalls + place % 16;
  const Philox random =
      Philox::at({static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(call >> 32), noise.use, noise.parameter},
                 noise_key(noise, 0), noise_key(noise, 1));
  const std::uint32_t word = random.words[place / 16 % 4];
  return static_cast<int>(place < 64 ? word & 0xffffu : word >> 16);
}
/// Its noise.
constexpr float noise_at(const Noise& noise, std::uint64_t element) { return centered(noise_bits_at(noise, element)); }

// Residuals in bf16. Their random bits are those that one group has under another key, again and again for as many
// groups as are in a run: what is cut off of two elements differs anyhow, but of one element in two steps it may not.
inline constexpr std::uint64_t kResidualRun = 32 * kNoiseGroup;

constexpr Noise residual_noise(Noise noise) {
  noise.seed ^= 0x64736572u;
  return noise;
}
/// 16 random bits are added to what bf16 cuts off: the magnitude becomes the next larger one as often as x is near it.
/// No larger than the largest bf16.
inline constexpr float kLargestResidual = 0x1.fep127f;
constexpr std::uint16_t bf16_residual_bits(float x, int random) {
  const std::uint32_t bits = to_bits(x);
  const int magnitude = least(as_int(bits & kMagnitudeMask), as_int(to_bits(kLargestResidual)));
  return static_cast<std::uint16_t>((as_unsigned(magnitude + random) | (bits & kSignMask)) >> 16);
}
/// To nearest instead, for what happens once and not in every step.
constexpr std::uint16_t nearest_residual(float x) { return bf16_residual_bits(x, 0x8000); }
/// One element of a parameter.
constexpr std::uint16_t bf16_residual_at(float x, const Noise& noise, std::uint64_t element) {
  const std::uint64_t same = element / kResidualRun * kNoiseGroup + element % kNoiseGroup;
  return bf16_residual_bits(x, noise_bits_at(residual_noise(noise), same));
}

}  // namespace detail
}  // namespace tightwire
