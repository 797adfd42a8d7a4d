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

/// What kernels take in one step: 64 elements, four of the widest registers.
inline constexpr std::size_t kStep = 64;

/// A slice is worked on in pieces of about so many elements: few enough to stay in the first-level cache between one
/// kernel and the next, enough to make little of the calls.
inline constexpr std::size_t kPiece = 1024;
inline constexpr std::size_t kBlocksPerPiece = kPiece / kStep;

/// A run of blocks, in units of elements of the slice.
struct Piece {
  std::size_t first_block;
  std::size_t blocks;
  std::size_t at;
  std::size_t count;
  bool padded;  ///< a block is not a multiple of kStep, or the last one is short: kernels need a copy with room
};

/// Calls f(piece) for all of a slice in order.
template <class F>
void for_each_piece(std::size_t block, std::size_t count, F f) {
  const std::size_t most = std::max<std::size_t>(1, kPiece / align_up(block, kStep));
  const std::size_t whole = count / block;
  for (std::size_t b = 0; b < whole; b += most) {
    const std::size_t blocks = std::min(most, whole - b);
    f(Piece{b, blocks, b * block, blocks * block, block % kStep != 0});
  }
  if (count % block != 0) f(Piece{whole, 1, whole * block, count % block, true});
}

/// How a piece lies in a padded copy: every block starts on a multiple of kStep.
struct Padding {
  std::size_t block;
  std::size_t padded_block;
  std::size_t count;

  Padding(std::size_t block_size, std::size_t elements)
      : block(block_size), padded_block(align_up(block_size, kStep)), count(elements) {}

  std::size_t valid(std::size_t b) const { return std::min(block, count - b * block); }

  /// Into the copy, zeros between. Elements of `bits` bits each.
  void spread(int bits, const void* from, void* to) const {
    for (std::size_t b = 0; b * block < count; ++b) {
      const std::size_t bytes = code_bytes(bits, valid(b));
      auto* start = static_cast<std::byte*>(to) + code_bytes(bits, b * padded_block);
      std::memcpy(start, static_cast<const std::byte*>(from) + code_bytes(bits, b * block), bytes);
      std::memset(start + bytes, 0, code_bytes(bits, padded_block) - bytes);
    }
  }
  /// Out of the copy.
  void collect(int bits, const void* from, void* to) const {
    for (std::size_t b = 0; b * block < count; ++b)
      std::memcpy(static_cast<std::byte*>(to) + code_bytes(bits, b * block),
                  static_cast<const std::byte*>(from) + code_bytes(bits, b * padded_block), code_bytes(bits, valid(b)));
  }
  /// Between blocks of the copy the last element of each, which changes no statistic.
  void repeat_last(float* x) const {
    for (std::size_t b = 0; b * block < count; ++b) {
      float* start = x + b * padded_block;
      std::fill(start + valid(b), start + padded_block, start[valid(b) - 1]);
    }
  }
};

/// Blocks as kernels see them.
struct Blocks {
  std::size_t count;
  std::size_t size;                  ///< elements from one to the next, a multiple of kStep
  const Padding* padding = nullptr;  ///< of the copy that they lie in

  std::size_t elements() const { return count * size; }
  std::size_t valid(std::size_t b) const { return padding != nullptr ? padding->valid(b) : size; }
};

/// Room for one padded piece of fp32 or of codes.
struct alignas(64) PaddedBuffer {
  std::byte bytes[4 * kLargestBlock];
  float* floats() { return reinterpret_cast<float*>(bytes); }
};

inline Residual advance(Residual residual, std::size_t by) {
  return residual ? Residual{residual.before + by, residual.after + by} : Residual{};
}

}  // namespace tightwire::host
