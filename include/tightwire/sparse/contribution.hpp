#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/sparse/frame_slot.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/sparse/selection.hpp>

namespace tightwire::sparse {

/// What a rank contributes: the chosen elements of its gradients and residuals, range by range. What is not sent, or
/// not exactly, is in the residuals afterwards.
class Contribution {
 public:
  Contribution(const Plan& plan, const MomentumCorrection& momentum) : plan_(plan), momentum_(momentum) {
    for (const Group& group : plan.groups) {
      selections_.emplace_back();
      sources_.emplace_back(group.parameters.size());
    }
    chosen_.resize(plan.groups.size());
    for (const PlannedSparse& p : plan.parameters) {
      const std::size_t most = p.settings.chosen(p.count, 0);
      entries_.reserve(most + most / 2);
      gathered_.reserve(most + most / 2);
      sent_.reserve(most + most / 2);
    }
  }

  /// Chooses. `rank` takes part in where samples are taken.
  void choose(const ReductionInput& input, int rank) {
    input_ = &input;
    forgotten_ = 0;
    for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
      const Group& group = plan_.groups[g];
      for (std::size_t i = 0; i < group.parameters.size(); ++i) {
        const std::size_t p = group.parameters[i];
        sources_[g][i] = {
            input.data[p],           plan_.parameters[p].type, plan_.parameters[p].count,
            plan_.place_in_group[p], input.senders[p],         input.momenta.empty() ? Residual{} : input.momenta[p]};
      }
      const SparseSettings& settings = plan_.parameters[group.parameters.front()].settings;
      chosen_[g] = settings.chosen(group.elements, input.committed);
      if (chosen_[g] == group.elements) {
        // A parameter without elements has no residual, whatever the others have.
        if (std::any_of(sources_[g].begin(), sources_[g].end(),
                        [](const Source& source) { return static_cast<bool>(source.residual); }))
          selections_[g].add(sources_[g], momentum_);
      } else if (settings.sampled) {
        selections_[g].choose_sampled(
            sources_[g], chosen_[g], momentum_,
            {input.seed, input.sequence, plan_.parameters[group.parameters.front()].number ^ rank_word(rank)});
      } else {
        selections_[g].choose(sources_[g], chosen_[g], momentum_);
      }
      forgotten_ += everything(g) ? 0 : selections_[g].forgotten();
    }
  }
  /// Elements that were not finite, and of which no trace is left.
  std::uint64_t forgotten() const { return forgotten_; }

  /// Writes the sections of these pieces behind each other into the payload of a frame. Returns the bytes; adds
  /// elements that were not finite, or are not once encoded.
  std::size_t write(std::span<const Piece> pieces, FrameSlot& frame, std::uint64_t& nonfinite) {
    std::size_t at = 0;
    for (const Piece& piece : pieces) {
      const Coder& coder = *plan_.parameters[piece.parameter].settings.values;
      gather(piece);
      SectionSize size{IndexForm::all, kSectionHead + coder.wire_bytes(piece.count)};
      if (!everything(plan_.group_of[piece.parameter])) size = section_size(coder, entries_.indices, piece.count);
      const bool all = size.form == IndexForm::all;
      if (all) gather_all(piece);
      frame.reserve(sizeof(FrameHeader) + at + size.bytes, sizeof(FrameHeader) + at);
      std::byte* wire = write_head(size.form, entries_.indices, piece.count, frame.payload() + at);
      nonfinite += encode(piece, coder, all, wire);
      at += size.bytes;
    }
    return at;
  }

 private:
  static std::uint32_t rank_word(int rank) { return static_cast<std::uint32_t>(rank + 1) * 0x9e3779b9u; }
  bool everything(std::size_t group) const { return chosen_[group] == plan_.groups[group].elements; }

  /// The chosen elements of a piece. None where all are sent, as there was nothing to choose.
  void gather(const Piece& piece) {
    entries_.resize(0);
    const std::size_t g = plan_.group_of[piece.parameter];
    if (everything(g)) return;
    const std::uint32_t first = plan_.place_in_group[piece.parameter] + static_cast<std::uint32_t>(piece.begin);
    const auto places = selections_[g].places();
    const auto low = std::lower_bound(places.begin(), places.end(), first);
    const auto high = std::lower_bound(low, places.end(), std::uint64_t{first} + piece.count);
    const auto at = static_cast<std::size_t>(low - places.begin());
    entries_.resize(static_cast<std::size_t>(high - low));
    for (std::size_t i = 0; i < entries_.size(); ++i) entries_.indices[i] = low[static_cast<std::ptrdiff_t>(i)] - first;
    const auto values = selections_[g].values().subspan(at, entries_.size());
    std::copy(values.begin(), values.end(), entries_.values.begin());
  }
  /// All elements of a piece, of which the chosen ones have been gathered.
  void gather_all(const Piece& piece) {
    std::swap(entries_, gathered_);
    entries_.resize(piece.count);
    for (std::size_t i = 0; i < piece.count; ++i) entries_.indices[i] = static_cast<std::uint32_t>(i);
    const Residual& residual = input_->senders[piece.parameter];
    if (residual) {
      std::copy_n(residual.after + piece.begin, piece.count, entries_.values.begin());
      // These left the residual when they were chosen.
      for (std::size_t i = 0; i < gathered_.size(); ++i) entries_.values[gathered_.indices[i]] = gathered_.values[i];
      return;
    }
    const ElementType type = plan_.parameters[piece.parameter].type;
    const auto* from = static_cast<const std::byte*>(input_->data[piece.parameter]) + piece.begin * element_bytes(type);
    host::widen(host::level(), type, from, piece.count, entries_.values.data());
  }

  /// `all` elements of a piece, or those that were chosen, which have left the residual already.
  std::uint64_t encode(const Piece& piece, const Coder& coder, bool all, std::byte* wire) {
    const std::size_t count = entries_.size();
    if (count == 0) return 0;
    const std::uint64_t nonfinite =
        coder.encode(ElementType::f32, {.data = entries_.values.data(), .residual = {}, .count = count, .wire = wire});
    const Residual residual = advanced(input_->senders[piece.parameter], piece.begin);
    if (!residual) return nonfinite;
    if (all || nonfinite != 0 || !coder.lossless(ElementType::f32)) {
      sent_.resize(count);
      coder.decode(ElementType::f32, {.wire = wire, .count = count, .out = sent_.data()});
      keep_rest(piece, residual);
    }
    mask_momentum(piece);
    return nonfinite;
  }

  /// What is left of the elements that were sent.
  void keep_rest(const Piece& piece, const Residual& residual) {
    const Residual momentum =
        input_->momenta.empty() ? Residual{} : advanced(input_->momenta[piece.parameter], piece.begin);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const std::size_t e = entries_.indices[i];
      if (std::isfinite(sent_[i])) {
        residual.after[e] = entries_.values[i] - sent_[i];
      } else {
        undo(residual, e);
        undo(momentum, e);
      }
    }
  }

  /// What was sent starts anew. Where everything is sent, no momentum is ever stale.
  void mask_momentum(const Piece& piece) {
    if (input_->momenta.empty() || !momentum_.masking || everything(plan_.group_of[piece.parameter])) return;
    float* const momentum = input_->momenta[piece.parameter].after + piece.begin;
    for (const std::uint32_t e : entries_.indices) momentum[e] = 0.0f;
  }

  const Plan& plan_;
  MomentumCorrection momentum_;
  const ReductionInput* input_ = nullptr;
  std::vector<Selection> selections_;
  std::vector<std::vector<Source>> sources_;
  std::vector<std::size_t> chosen_;  ///< by group
  std::uint64_t forgotten_ = 0;
  Entries entries_, gathered_;
  std::vector<float> sent_;
};

}  // namespace tightwire::sparse
