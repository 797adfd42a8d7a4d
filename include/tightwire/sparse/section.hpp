#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/error.hpp>
#include <tightwire/sparse/index_code.hpp>

namespace tightwire::sparse {

/// Some elements of a run of elements: where they are within it, ascending, and what they are.
struct Entries {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;

  std::size_t size() const { return indices.size(); }
  void reserve(std::size_t count) {
    indices.reserve(count);
    values.reserve(count);
  }
  void resize(std::size_t count) {
    indices.resize(count);
    values.resize(count);
  }
};

/// A section of a payload, the entries of one run of elements:
///
///     8 bytes  number of entries in the low 56 bits, IndexForm in the upper 8
///     indices  as the form says
///     values   as the codec of the values encodes that many fp32 elements
inline constexpr std::size_t kSectionHead = 8;

/// The form that takes the fewest bytes, and how many those are with head and values. Values of elements that nobody
/// chose cost less than saying which they are, once nearly all were chosen: IndexForm::all.
struct SectionSize {
  IndexForm form;
  std::size_t bytes;
};
inline SectionSize section_size(const Coder& coder, std::span<const std::uint32_t> indices, std::size_t elements) {
  const std::size_t all = coder.wire_bytes(elements);
  std::size_t bytes = gaps_bytes(indices);
  IndexForm form = IndexForm::gaps;
  if (bitmap_bytes(elements) < bytes) {
    bytes = bitmap_bytes(elements);
    form = IndexForm::bitmap;
  }
  bytes += coder.wire_bytes(indices.size());
  if (all <= bytes && elements != 0) return {IndexForm::all, kSectionHead + all};
  return {form, kSectionHead + bytes};
}
/// The most that the entries of so many elements can take.
inline std::size_t largest_section(const Coder& coder, std::size_t elements) {
  return kSectionHead + coder.wire_bytes(elements);
}

/// Writes head and indices; returns where the values go.
inline std::byte* write_head(IndexForm form, std::span<const std::uint32_t> indices, std::size_t elements,
                             std::byte* to) {
  const std::uint64_t count = form == IndexForm::all ? elements : indices.size();
  const std::uint64_t head = count | std::uint64_t{static_cast<std::uint8_t>(form)} << 56;
  std::memcpy(to, &head, kSectionHead);
  return write_indices(form, indices, elements, to + kSectionHead);
}

/// Reads a section off the front of `from`. `entries` keeps its memory. Throws Error(corrupt) for bytes that no encoder
/// writes: too few of them, more entries than elements, an index out of range. Any other bytes give ascending indices
/// below `elements`.
inline void read_section(const Coder& coder, std::span<const std::byte>& from, std::size_t elements, Entries& entries) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::corrupt, "section of " + std::to_string(elements) + " elements: " + why);
  };
  std::uint64_t head = 0;
  if (from.size() < kSectionHead) refuse("the payload ends before it");
  std::memcpy(&head, from.data(), kSectionHead);
  from = from.subspan(kSectionHead);
  const std::uint64_t count = head & ((std::uint64_t{1} << 56) - 1);
  if (count > elements) refuse("claims " + std::to_string(count) + " entries");
  if (head >> 56 > static_cast<std::uint64_t>(IndexForm::all))
    refuse("index form " + std::to_string(head >> 56) + " is not known");
  const std::size_t bytes = coder.wire_bytes(count);
  if (from.size() < bytes) refuse("its values are cut off");
  entries.resize(count);
  if (!read_indices(static_cast<IndexForm>(head >> 56), from, elements, entries.indices))
    refuse("its indices are cut off or out of range");
  if (from.size() < bytes) refuse("its values are cut off");
  if (count != 0) coder.decode(ElementType::f32, {.wire = from.data(), .count = count, .out = entries.values.data()});
  from = from.subspan(bytes);
}

}  // namespace tightwire::sparse
