#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tightwire/sparse/frame_slot.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/sparse/section.hpp>

namespace tightwire::sparse {

/// What was chosen of a group of parameters that are chosen from together.
struct Choice {
  std::span<const std::uint32_t> places;  ///< in the group, ascending
  std::span<const float> values;          ///< sums of gradient and residual there
  bool everything = false;                ///< all elements, which are not listed
};

/// What was chosen -> sections of payloads. Where gradients and residuals are is left to `Elements`:
///
///     take_all(piece, entries)               in: what was chosen of the piece; out: an entry for each of its elements
///     has_residual(parameter) -> bool
///     keep(piece, form, entries, sent)       entries arrive as `sent`: the residual gets what was lost. Not called for
///     those
///                                            that were chosen and arrive as they are
///     were_sent(piece, entries)
template <class Elements>
class SectionWriter {
 public:
  /// Makes room for so many entries of a piece.
  void reserve(std::size_t entries) {
    entries_.reserve(entries);
    sent_.reserve(entries);
  }

  /// Writes the sections of these pieces behind each other into the payload of a frame; `choices` is by group. Returns
  /// the bytes; adds elements that were not finite, or are not once encoded.
  std::size_t write(const Plan& plan, std::span<const Choice> choices, std::span<const Piece> pieces, FrameSlot& frame,
                    std::uint64_t& nonfinite, Elements& elements) {
    std::size_t at = 0;
    for (const Piece& piece : pieces) {
      const Coder& coder = *plan.parameters[piece.parameter].settings.values;
      const Choice& choice = choices[plan.group_of[piece.parameter]];
      gather(choice, plan.place_in_group[piece.parameter] + static_cast<std::uint32_t>(piece.begin), piece.count);
      SectionSize size{IndexForm::all, kSectionHead + coder.wire_bytes(piece.count)};
      if (!choice.everything) size = section_size(coder, entries_.indices, piece.count);
      if (size.form == IndexForm::all) elements.take_all(piece, entries_);
      frame.reserve(sizeof(FrameHeader) + at + size.bytes, sizeof(FrameHeader) + at);
      std::byte* wire = write_head(size.form, entries_.indices, piece.count, frame.payload() + at);
      nonfinite += encode(piece, size.form, coder, wire, elements);
      at += size.bytes;
    }
    return at;
  }

 private:
  /// The chosen elements of a piece whose first one is at `first` in its group.
  void gather(const Choice& choice, std::uint32_t first, std::size_t count) {
    entries_.resize(0);
    if (choice.everything) return;
    const auto places = choice.places;
    const auto low = std::lower_bound(places.begin(), places.end(), first);
    const auto high = std::lower_bound(low, places.end(), std::uint64_t{first} + count);
    const auto at = static_cast<std::size_t>(low - places.begin());
    entries_.resize(static_cast<std::size_t>(high - low));
    for (std::size_t i = 0; i < entries_.size(); ++i) entries_.indices[i] = low[static_cast<std::ptrdiff_t>(i)] - first;
    const auto values = choice.values.subspan(at, entries_.size());
    std::copy(values.begin(), values.end(), entries_.values.begin());
  }

  std::uint64_t encode(const Piece& piece, IndexForm form, const Coder& coder, std::byte* wire, Elements& elements) {
    const std::size_t count = entries_.size();
    if (count == 0) return 0;
    const std::uint64_t nonfinite =
        coder.encode(ElementType::f32, {.data = entries_.values.data(), .residual = {}, .count = count, .wire = wire});
    if (!elements.has_residual(piece.parameter)) return nonfinite;
    if (form == IndexForm::all || nonfinite != 0 || !coder.lossless(ElementType::f32)) {
      sent_.resize(count);
      coder.decode(ElementType::f32, {.wire = wire, .count = count, .out = sent_.data()});
      elements.keep(piece, form, entries_, sent_);
    }
    elements.were_sent(piece, entries_);
    return nonfinite;
  }

  Entries entries_;
  std::vector<float> sent_;
};

}  // namespace tightwire::sparse
