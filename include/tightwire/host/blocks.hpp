#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <tightwire/coder.hpp>
#include <tightwire/host/packing.hpp>

namespace tightwire::host {

/// Blocks are multiples of the smallest, up to this many elements.
inline constexpr int kSmallestBlock = 16;
inline constexpr int kLargestBlock = 4096;

/// Loops take this many elements at a time: four of the widest registers. What is left of a block, less than that, goes
/// through a copy with room.
inline constexpr std::size_t kGroup = 64;
/// Elements from one block to the next in a loop's own memory.
constexpr std::size_t padded(std::size_t block) { return align_up(block, kGroup); }

/// The blocks of a slice; only the last may be short.
struct Blocks {
  std::size_t count;  ///< of the slice
  std::size_t size;

  std::size_t number() const { return (count + size - 1) / size; }
  std::size_t begin(std::size_t b) const { return b * size; }
  std::size_t elements(std::size_t b) const { return std::min(size, count - b * size); }
};

/// Blocks under way, at least two of them: the loops work on the next one while the scale of this one is being found.
struct alignas(64) TwoBlocks {
  float x[2 * kLargestBlock];
  float* of(std::size_t b, std::size_t block) { return x + b % 2 * padded(block); }
};

/// Room for what is left of a block, of elements up to 4 bytes.
struct alignas(64) Rest {
  std::byte bytes[4 * kGroup];
  float* floats() { return reinterpret_cast<float*>(bytes); }
};

/// The padding of both parts of an encoded slice, so that equal slices are equal bytes.
template <BlockCodec C>
void clear_padding(const C& codec, std::size_t count, std::byte* wire) {
  if (count == 0) return;  // there may be no wire
  const auto shape = layout(codec, count);
  const std::size_t params = shape.blocks * kParamBytes<C>;
  const std::size_t codes = shape.codes_at + code_bytes(C::bits, count);
  std::memset(wire + params, 0, shape.codes_at - params);
  std::memset(wire + codes, 0, shape.bytes - codes);
}

}  // namespace tightwire::host
