#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace tightwire::sparse {

/// How the places of entries are written.
enum class IndexForm : std::uint8_t {
  gaps = 0,    ///< distances less one, in blocks of 64 that share a width: a byte for the width, then the bits
  bitmap = 1,  ///< a bit per element, lowest first
  all = 2,     ///< nothing: every element has an entry
};

inline constexpr std::size_t kGapBlock = 64;

namespace detail {

/// Indices must be ascending, without repetition. Each is written as its distance to the one before less one, so that
/// what is read is ascending, too, whatever the bytes.
inline std::uint32_t gap(std::span<const std::uint32_t> indices, std::size_t i) {
  return i == 0 ? indices[0] : indices[i] - indices[i - 1] - 1;
}
inline int gap_width(std::span<const std::uint32_t> indices, std::size_t begin, std::size_t end) {
  std::uint32_t any = 0;
  for (std::size_t i = begin; i < end; ++i) any |= gap(indices, i);
  return std::bit_width(any);
}
constexpr std::size_t packed_bytes(std::size_t count, int width) {
  return (count * static_cast<std::size_t>(width) + 7) / 8;
}

inline std::byte* write_gaps(std::span<const std::uint32_t> indices, std::byte* to) {
  for (std::size_t begin = 0; begin < indices.size(); begin += kGapBlock) {
    const std::size_t end = std::min(begin + kGapBlock, indices.size());
    const int width = gap_width(indices, begin, end);
    *to++ = static_cast<std::byte>(width);
    std::uint64_t bits = 0;
    int filled = 0;
    for (std::size_t i = begin; i < end; ++i) {
      bits |= std::uint64_t{gap(indices, i)} << filled;
      filled += width;
      for (; filled >= 8; filled -= 8, bits >>= 8) *to++ = static_cast<std::byte>(bits);
    }
    if (filled > 0) *to++ = static_cast<std::byte>(bits);
  }
  return to;
}

/// Returns the bytes read, 0 for anything that no encoder writes.
inline std::size_t read_gaps(std::span<const std::byte> from, std::size_t elements, std::span<std::uint32_t> indices) {
  std::size_t at = 0;
  std::uint64_t next = 0;  // the least that the next index can be
  for (std::size_t begin = 0; begin < indices.size(); begin += kGapBlock) {
    const std::size_t count = std::min(kGapBlock, indices.size() - begin);
    if (at == from.size()) return 0;
    const int width = std::to_integer<int>(from[at++]);
    if (width > 32) return 0;
    const std::size_t bytes = packed_bytes(count, width);
    if (from.size() - at < bytes) return 0;
    std::byte packed[kGapBlock * 4 + 8] = {};
    if (bytes != 0) std::memcpy(packed, from.data() + at, bytes);
    at += bytes;
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    for (std::size_t i = 0, bit = 0; i < count; ++i, bit += static_cast<std::size_t>(width)) {
      std::uint64_t word = 0;
      std::memcpy(&word, packed + bit / 8, sizeof word);
      const std::uint64_t index = next + (word >> bit % 8 & mask);
      if (index >= elements) return 0;
      indices[begin + i] = static_cast<std::uint32_t>(index);
      next = index + 1;
    }
  }
  return at;
}

inline std::byte* write_bitmap(std::span<const std::uint32_t> indices, std::size_t elements, std::byte* to) {
  const std::size_t bytes = (elements + 7) / 8;
  std::memset(to, 0, bytes);
  for (const std::uint32_t index : indices) to[index / 8] |= static_cast<std::byte>(1u << index % 8);
  return to + bytes;
}
inline std::size_t read_bitmap(std::span<const std::byte> from, std::size_t elements,
                               std::span<std::uint32_t> indices) {
  const std::size_t bytes = (elements + 7) / 8;
  if (from.size() < bytes) return 0;
  std::size_t found = 0;
  for (std::size_t at = 0; at < bytes; ++at)
    for (auto bits = std::to_integer<unsigned>(from[at]); bits != 0; bits &= bits - 1) {
      const std::size_t index = 8 * at + static_cast<std::size_t>(std::countr_zero(bits));
      if (index >= elements || found == indices.size()) return 0;
      indices[found++] = static_cast<std::uint32_t>(index);
    }
  return found == indices.size() ? bytes : 0;
}

}  // namespace detail

/// Bytes of ascending indices as gaps. Cost: linear.
inline std::size_t gaps_bytes(std::span<const std::uint32_t> indices) {
  std::size_t bytes = 0;
  for (std::size_t begin = 0; begin < indices.size(); begin += kGapBlock) {
    const std::size_t end = std::min(begin + kGapBlock, indices.size());
    bytes += 1 + detail::packed_bytes(end - begin, detail::gap_width(indices, begin, end));
  }
  return bytes;
}
constexpr std::size_t bitmap_bytes(std::size_t elements) { return (elements + 7) / 8; }

/// Writes ascending indices below `elements` and returns where it ended.
inline std::byte* write_indices(IndexForm form, std::span<const std::uint32_t> indices, std::size_t elements,
                                std::byte* to) {
  if (form == IndexForm::gaps) return detail::write_gaps(indices, to);
  if (form == IndexForm::bitmap) return detail::write_bitmap(indices, elements, to);
  return to;
}

/// Reads as many indices as there is room for, off the front of `from`. False where the bytes are too few, or mean an
/// index that is not below `elements`. What was read is ascending and without repetition.
inline bool read_indices(IndexForm form, std::span<const std::byte>& from, std::size_t elements,
                         std::span<std::uint32_t> indices) {
  if (indices.empty() && form != IndexForm::bitmap) return true;
  std::size_t bytes = 0;
  switch (form) {
    case IndexForm::gaps: bytes = detail::read_gaps(from, elements, indices); break;
    case IndexForm::bitmap: bytes = detail::read_bitmap(from, elements, indices); break;
    case IndexForm::all:
      if (indices.size() != elements) return false;
      for (std::size_t i = 0; i < elements; ++i) indices[i] = static_cast<std::uint32_t>(i);
      return true;
  }
  if (bytes == 0) return elements == 0 && indices.empty();
  from = from.subspan(bytes);
  return true;
}

}  // namespace tightwire::sparse
