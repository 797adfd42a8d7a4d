#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/detail/rounded_product.hpp>
#include <tightwire/frame.hpp>
#include <tightwire/sparse/frame_slot.hpp>
#include <tightwire/sparse/largest.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/sparse/range_sum.hpp>
#include <tightwire/sparse/section.hpp>

namespace tightwire::sparse {

/// Sections of all ranks -> sums, and sections of sums. Where gradients and residuals are is left to `Elements`:
///
///     put(piece, index, x) -> float          the element becomes x; returns what its buffer holds of it
///     give_back(piece, index, lost)          adds to the residual of a sum's element, unless that is not finite
template <class Elements>
class PieceSums {
 public:
  /// The plan must outlive it.
  PieceSums(const Plan& plan, float divisor)
      : plan_(plan), divisor_(divisor), ranks_(static_cast<std::size_t>(plan.ranks)), received_(ranks_), rest_(ranks_) {
    for (const PlannedSparse& p : plan.parameters) {
      const std::size_t chosen = p.settings.chosen(p.count, 0), most = std::min(p.count, 2 * chosen + 64);
      for (Entries& entries : received_) entries.reserve(most);
      sums_.reserve(std::min(p.count, ranks_ * most));
      decoded_.reserve(std::min(p.count, ranks_ * most));
      largest_.reserve(std::min(p.count, ranks_ * most));
    }
  }

  /// What a rank contributed, a payload of sections; it stays until the sums are made.
  void open(std::size_t rank, std::span<const std::byte> payload) { rest_[rank] = payload; }

  /// Sums over all ranks, of which the largest are kept, as many as a rank contributed on average, and their means
  /// written into the payload of a frame. What is dropped, or lost, is given back. Returns the bytes.
  std::size_t combine(std::span<const Piece> pieces, FrameSlot& frame, Elements& elements) {
    std::size_t at = 0;
    for (const Piece& piece : pieces) {
      const std::size_t entries = add_up(piece);
      if (plan_.parameters[piece.parameter].settings.reselect)
        reselect(piece, (entries + ranks_ - 1) / ranks_, elements);
      at += write_result(piece, frame, at, elements);
    }
    require_all_read();
    return at;
  }

  /// Means of what all ranks contributed, all of it.
  void sum(std::span<const Piece> pieces, Elements& elements) {
    for (const Piece& piece : pieces) {
      add_up(piece);
      for (std::size_t i = 0; i < sums_.size(); ++i) {
        const float x = sums_.values[i] / divisor_;
        if (!std::isfinite(elements.put(piece, sums_.indices[i], x))) ++nonfinite_;
      }
    }
    require_all_read();
  }

  /// The result of another owner.
  void scatter(std::size_t owner, std::span<const Piece> pieces, std::span<const std::byte> payload,
               Elements& elements) {
    for (const Piece& piece : pieces) {
      read(owner, piece, payload, sums_);
      for (std::size_t i = 0; i < sums_.size(); ++i) elements.put(piece, sums_.indices[i], sums_.values[i]);
    }
    require_read_up(owner, payload);
  }

  /// Sums since the last call that are not finite in a buffer or on the wire.
  std::uint64_t take_nonfinite() { return std::exchange(nonfinite_, 0); }

 private:
  void read(std::size_t sender, const Piece& piece, std::span<const std::byte>& rest, Entries& entries) const {
    try {
      read_section(*plan_.parameters[piece.parameter].settings.values, rest, piece.count, entries);
    } catch (const Error& error) {
      frame::refuse(error.code(), static_cast<std::uint32_t>(sender), error.what());
    }
  }
  static void require_read_up(std::size_t sender, std::span<const std::byte> rest) {
    if (!rest.empty())
      frame::refuse(Errc::corrupt, static_cast<std::uint32_t>(sender),
                    std::to_string(rest.size()) + " bytes behind its last section");
  }
  void require_all_read() const {
    for (std::size_t rank = 0; rank < ranks_; ++rank) require_read_up(rank, rest_[rank]);
  }

  /// The sums of a piece over all ranks, in `sums_`. Returns how many entries they were made of.
  std::size_t add_up(const Piece& piece) {
    std::size_t entries = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      read(rank, piece, rest_[rank], received_[rank]);
      entries += received_[rank].size();
    }
    range_sum_.add_up(received_, piece.count, sums_);
    return entries;
  }

  void reselect(const Piece& piece, std::size_t most, Elements& elements) {
    if (sums_.size() <= most) return;
    largest_.keep({sums_.values.data(), sums_.indices.data(), sums_.size()}, most, 0,
                  [&](std::uint32_t index, float x) { give_back(piece, index, x, elements); });
    sums_.resize(most);
  }
  /// What the sum lost is the owner's to send again.
  static void give_back(const Piece& piece, std::size_t index, float lost, Elements& elements) {
    if (std::isfinite(lost)) elements.give_back(piece, index, lost);
  }

  /// The mean of the kept sums, into the result's frame and into our own buffer. Returns the bytes of the section.
  std::size_t write_result(const Piece& piece, FrameSlot& frame, std::size_t at, Elements& elements) {
    using tightwire::detail::rounded_product;
    const PlannedSparse& parameter = plan_.parameters[piece.parameter];
    const Coder& coder = *parameter.settings.values;
    SectionSize size = section_size(coder, sums_.indices, piece.count);
    if (size.form == IndexForm::all) fill_up(piece.count);
    for (float& x : sums_.values) x /= divisor_;
    frame.reserve(sizeof(FrameHeader) + at + size.bytes, sizeof(FrameHeader) + at);
    std::byte* wire = write_head(size.form, sums_.indices, piece.count, frame.payload() + at);
    const std::size_t count = sums_.size();
    if (count == 0) return size.bytes;
    nonfinite_ +=
        coder.encode(ElementType::f32, {.data = sums_.values.data(), .residual = {}, .count = count, .wire = wire});
    decoded_.resize(count);
    coder.decode(ElementType::f32, {.wire = wire, .count = count, .out = decoded_.data()});
    const bool loses = !coder.lossless(ElementType::f32) || parameter.type != ElementType::f32;
    for (std::size_t i = 0; i < count; ++i) {
      const float value = elements.put(piece, sums_.indices[i], decoded_[i]);
      if (std::isfinite(decoded_[i]) && !std::isfinite(value)) ++nonfinite_;  // too large for the buffer
      if (loses && std::isfinite(value))
        give_back(piece, sums_.indices[i], rounded_product(sums_.values[i] - value, divisor_), elements);
      else if (loses && !std::isfinite(decoded_[i]) && std::abs(sums_.values[i]) < kCause)
        give_back(piece, sums_.indices[i], rounded_product(sums_.values[i], divisor_), elements);
    }
    return size.bytes;
  }
  /// With a codec of blocks, an element that is not finite takes its neighbours along, which are sent again. One from
  /// here on may be what did it, by being rotated or too large for a scale, and would do it again.
  static constexpr float kCause = 0x1p110f;
  /// An entry for every element: nothing where there was none.
  void fill_up(std::size_t elements) {
    full_.resize(elements);
    std::fill(full_.values.begin(), full_.values.end(), 0.0f);
    for (std::size_t i = 0; i < elements; ++i) full_.indices[i] = static_cast<std::uint32_t>(i);
    for (std::size_t i = 0; i < sums_.size(); ++i) full_.values[sums_.indices[i]] = sums_.values[i];
    std::swap(full_, sums_);
  }

  const Plan& plan_;
  float divisor_;
  std::size_t ranks_;
  RangeSum range_sum_;
  Largest largest_;
  std::vector<Entries> received_;  ///< by rank, of the piece that is being summed
  std::vector<std::span<const std::byte>> rest_;
  Entries sums_, full_;
  std::vector<float> decoded_;
  std::uint64_t nonfinite_ = 0;
};

}  // namespace tightwire::sparse
