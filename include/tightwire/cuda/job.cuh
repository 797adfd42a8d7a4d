#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/host/layout.hpp>

// What kernels are told. Pointers are to memory of the device.

namespace tightwire::cuda::detail {

/// Of a CUDA block, which works on one tile.
inline constexpr unsigned kThreads = 128;
/// Elements that a thread takes at a time: 32 bytes of fp32, and a whole number of bytes of codes, whatever their bits.
inline constexpr unsigned kGranule = 8;
/// Whole blocks of about this many elements make a tile, so that every thread has a granule.
inline constexpr unsigned kTile = kThreads * kGranule;
/// Contributions in one combine; their addresses are an argument of the kernel.
inline constexpr unsigned kMostRanks = 128;

/// An encoded slice and its parts.
struct Shape {
  std::size_t count;                            ///< elements
  std::size_t params;                           ///< bytes
  std::size_t codes_at;                         ///< bytes
  std::size_t codes;                            ///< bytes
  std::size_t bytes;                            ///< in all
  unsigned block, part, parts_per_block, tile;  ///< elements
};
/// Of the randomized Hadamard transform. `size` 0: there is none.
struct Rotation {
  unsigned size = 0;
  std::uint32_t signs[host::kLargestBlock / 32] = {};  ///< a bit for each element of a block; set: turned around
};
struct NoiseKey {
  bool given = false;
  std::uint32_t key[2] = {};
  std::uint32_t use = 0, parameter = 0;
  std::uint64_t first = 0;
};
struct Feedback {
  const float* before = nullptr;
  float* after = nullptr;
};
struct EncodeJob {
  Shape shape;
  Rotation rotation;
  NoiseKey noise;
  ElementType type;
  const std::byte* data;
  Feedback residual;
  std::byte* wire;
  unsigned long long* nonfinite;  ///< added to; may be null
};
struct CombineJob {
  Shape shape;
  Rotation rotation;
  NoiseKey sender_noise, owner_noise;
  ElementType type;
  bool lossless;
  bool has_own;
  bool divides_by_power_of_two;
  float divisor, inverse;
  unsigned ranks;
  const std::byte* data;
  Feedback sender, owner;
  std::byte* wire;
  std::byte* out;
  unsigned long long* contribution;  ///< non-finite elements, added to; may be null
  unsigned long long* result;
  const std::byte* sources[kMostRanks];
};
struct DecodeJob {
  Shape shape;
  Rotation rotation;
  ElementType type;
  const std::byte* wire;
  std::byte* out;
};

/// Elements to a tile: whole blocks, about kTile, and a number of whole 128 where that can be, so that the codes of
/// every tile begin on 16 bytes.
inline unsigned tile_of(const host::Form& form, bool rotated) {
  if (rotated) return static_cast<unsigned>(form.tile);  // non-finite elements are counted by tiles of the host
  std::size_t whole = form.grain;
  while (whole % 128 != 0 && whole * 2 <= host::kLargestTile) whole *= 2;
  if (whole % 128 != 0) whole = form.grain;
  return static_cast<unsigned>(whole * (whole < kTile ? kTile / whole : 1));
}
inline Shape shape_of(const host::Form& form, std::size_t count, bool rotated) {
  const host::Layout layout = host::layout(form, count);
  return {.count = count,
          .params = layout.params,
          .codes_at = layout.codes_at,
          .codes = layout.codes,
          .bytes = layout.bytes,
          .block = static_cast<unsigned>(form.block),
          .part = static_cast<unsigned>(form.part),
          .parts_per_block = static_cast<unsigned>(form.parts_per_block),
          .tile = tile_of(form, rotated)};
}

}  // namespace tightwire::cuda::detail
