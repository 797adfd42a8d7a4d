#pragma once
#include <bit>
#include <string>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/rotated.hpp>
#include <tightwire/error.hpp>

namespace tightwire::detail {

// What the coders of all devices say of a codec, and refuse.

/// Blocks are multiples of the smallest, up to this many elements.
inline constexpr int kSmallestBlock = 16;
inline constexpr int kLargestBlock = 4096;
inline constexpr int kSmallestRotation = 32;

/// "hadamard:32,seed=7"; `size` 0: nothing.
template <BlockCodec C>
std::string rotation_spec_of(const Rotated<C>& rotated) {
  if (rotated.size == 0) return {};
  return "hadamard:" + std::to_string(rotated.size) +
         (rotated.seed != 0 ? ",seed=" + std::to_string(rotated.seed) : "");
}

/// "hadamard:32+int8:block=256"; `size` 0: not rotated.
template <BlockCodec C>
std::string spec_of(const Rotated<C>& rotated) {
  std::string spec = rotation_spec_of(rotated);
  if (rotated.size != 0) spec += "+";
  spec += std::string(C::name) + ":block=" + std::to_string(rotated.codec.block);
  if constexpr (requires { rotated.codec.round; })
    if (rotated.codec.round != C{}.round) spec += ",round=" + std::string(to_string(rotated.codec.round));
  return spec;
}

/// Throws Error(invalid_argument) for a block that is not a multiple of 16, or of the codec's part, up to 4096.
template <BlockCodec C>
void check_block(const C& codec) {
  int unit = kSmallestBlock;
  if constexpr (BlocksInParts<C>) {
    static_assert(C::part % kSmallestBlock == 0, "a part is a multiple of 16 elements");
    unit = C::part;
  }
  if (codec.block < unit || codec.block > kLargestBlock || codec.block % unit != 0)
    throw Error(Errc::invalid_argument, std::string(C::name) + ": block must be a multiple of " + std::to_string(unit) +
                                            " from " + std::to_string(unit) + " to 4096, got " +
                                            std::to_string(codec.block));
}

/// Throws Error(invalid_argument) for a size that is no power of two from 32 to 4096, or of which neither it nor the
/// block is a multiple of the other.
template <BlockCodec C>
void check_rotation(const Rotated<C>& rotated) {
  const auto fail = [&](const std::string& why) {
    return Error(Errc::invalid_argument, "hadamard: " + why + ", got " + std::to_string(rotated.size));
  };
  if (rotated.size < kSmallestRotation || rotated.size > kLargestBlock ||
      !std::has_single_bit(static_cast<unsigned>(rotated.size)))
    throw fail("size must be a power of two from 32 to 4096");
  if (rotated.size % rotated.codec.block != 0 && rotated.codec.block % rotated.size != 0)
    throw fail("size must divide the block of " + spec_of(Rotated<C>{0, rotated.codec, 0}) + " or be a multiple of it");
}

template <BlockCodec C>
bool is_stochastic(const C& codec, bool error_feedback) noexcept {
  if constexpr (requires { codec.round; })
    return codec.round == Rounding::stochastic ||
           (codec.round == Rounding::automatic && !error_feedback && C::bits <= 4);
  else
    return false;
}

}  // namespace tightwire::detail
