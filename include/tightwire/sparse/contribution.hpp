#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/sparse/section_writer.hpp>
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
    choices_.resize(plan.groups.size());
    for (const PlannedSparse& p : plan.parameters) {
      const std::size_t most = p.settings.chosen(p.count, 0);
      writer_.reserve(most + most / 2);
      chosen_.reserve(most + most / 2);
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
      const std::size_t chosen = settings.chosen(group.elements, input.committed);
      const bool everything = chosen == group.elements;
      if (everything) {
        // A parameter without elements has no residual, whatever the others have.
        if (std::any_of(sources_[g].begin(), sources_[g].end(),
                        [](const Source& source) { return static_cast<bool>(source.residual); }))
          selections_[g].add(sources_[g], momentum_);
      } else if (settings.sampled) {
        selections_[g].choose_sampled(
            sources_[g], chosen, momentum_,
            {input.seed, input.use, plan_.parameters[group.parameters.front()].number ^ rank_word(rank)});
      } else {
        selections_[g].choose(sources_[g], chosen, momentum_);
      }
      forgotten_ += everything ? 0 : selections_[g].forgotten();
      choices_[g] = {selections_[g].places(), selections_[g].values(), everything};
    }
  }
  /// Elements that were not finite, and of which no trace is left.
  std::uint64_t forgotten() const { return forgotten_; }

  /// Writes the sections of these pieces behind each other into the payload of a frame. Returns the bytes; adds
  /// elements that were not finite, or are not once encoded.
  std::size_t write(std::span<const Piece> pieces, FrameSlot& frame, std::uint64_t& nonfinite) {
    return writer_.write(plan_, choices_, pieces, frame, nonfinite, *this);
  }

  // For the writer of sections.

  bool has_residual(std::size_t parameter) const { return static_cast<bool>(input_->senders[parameter]); }
  void take_all(const Piece& piece, Entries& entries) {
    std::swap(chosen_, entries);
    entries.resize(piece.count);
    for (std::size_t i = 0; i < piece.count; ++i) entries.indices[i] = static_cast<std::uint32_t>(i);
    const Residual& residual = input_->senders[piece.parameter];
    if (residual) {
      std::copy_n(residual.after + piece.begin, piece.count, entries.values.begin());
      // These left the residual when they were chosen.
      for (std::size_t i = 0; i < chosen_.size(); ++i) entries.values[chosen_.indices[i]] = chosen_.values[i];
      return;
    }
    const ElementType type = plan_.parameters[piece.parameter].type;
    const auto* from = static_cast<const std::byte*>(input_->data[piece.parameter]) + piece.begin * element_bytes(type);
    host::widen(host::level(), type, from, piece.count, entries.values.data());
  }
  void keep(const Piece& piece, IndexForm /*form*/, const Entries& entries, std::span<const float> sent) const {
    const Residual residual = advanced(input_->senders[piece.parameter], piece.begin);
    const Residual momentum =
        input_->momenta.empty() ? Residual{} : advanced(input_->momenta[piece.parameter], piece.begin);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const std::size_t e = entries.indices[i];
      if (std::isfinite(sent[i])) {
        residual.after[e] = entries.values[i] - sent[i];
      } else {
        undo(residual, e);
        undo(momentum, e);
      }
    }
  }
  /// Momentum of what was sent starts anew. Where everything is sent, none is ever stale.
  void were_sent(const Piece& piece, const Entries& entries) const {
    if (input_->momenta.empty() || !momentum_.masking || choices_[plan_.group_of[piece.parameter]].everything) return;
    float* const momentum = input_->momenta[piece.parameter].after + piece.begin;
    for (const std::uint32_t e : entries.indices) momentum[e] = 0.0f;
  }

 private:
  const Plan& plan_;
  MomentumCorrection momentum_;
  const ReductionInput* input_ = nullptr;
  std::vector<Selection> selections_;
  std::vector<std::vector<Source>> sources_;
  std::vector<Choice> choices_;  ///< by group
  std::uint64_t forgotten_ = 0;
  Entries chosen_;  ///< of a piece that is sent whole
  SectionWriter<Contribution> writer_;
};

}  // namespace tightwire::sparse
