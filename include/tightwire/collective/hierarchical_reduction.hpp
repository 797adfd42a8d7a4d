#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/collective/block_reduction.hpp>
#include <tightwire/collective/group_transport.hpp>
#include <tightwire/hierarchical_plan.hpp>

namespace tightwire {

/// The all-reduce of what is encoded in blocks, over nodes (Hierarchy): a reduce_scatter inside the node, an all-reduce
/// of the node's sums among those who have the same part of every node, an all_gather inside. Sums are formed in the
/// order of the ranks of a node, then of the nodes. Whatever a stage drops is kept by who dropped it.
///
/// The stages follow each other chunk by chunk: while one is on the wire across, the next is summed inside and the one
/// before goes back. Where nothing is lost inside, it goes back as it came in from across: the same bytes, fewer of
/// them, and nothing is encoded again.
class HierarchicalReduction final : public Reduction {
 public:
  /// Of the stages, in order.
  using Identities = std::array<FrameIdentity, 3>;

  /// The plan must outlive it.
  HierarchicalReduction(Transport& transport, const HierarchicalPlan& plan, const Identities& identities, float divisor)
      : plan_(plan), node_(transport, plan.nodes.ranks[plan.nodes.place_of(transport.rank()).first]) {
    scatter_.make(node_, plan.scatter, plan.inside, identities[0], 1.0f);
    gather_.make(node_, plan.gather, plan.back, identities[2], 1.0f);
    if (plan.gather.passes_on) kept_.reserve(plan.rails.size());  // their places are told
    for (const Rail& rail : plan.rails) {
      FrameIdentity identity = identities[1];
      identity.first_chunk = static_cast<std::uint32_t>(rail.part * rail.sum.chunks.size());
      auto& members = rail_members_.emplace_back(std::make_unique<GroupTransport>(transport, rail.members));
      rails_.emplace_back().make(*members, rail.sum, rail.across, identity, divisor);
      if (plan.gather.passes_on) rails_.back().reduction->keep_results(kept_.emplace_back(rail.sum));
    }
    std::vector<const KeptResults*> passed_on;
    for (const KeptResults& kept : kept_) passed_on.push_back(&kept);
    gather_.reduction->pass_on(std::move(passed_on));
  }

  /// Residuals of stages: of our contribution across, in the order of our runs, and of what goes back inside.
  void begin(const ReductionInput& input) override {
    for (std::size_t run = 0; run < plan_.runs.size(); ++run) {
      const Run& of = plan_.runs[run];
      const std::size_t bytes = of.begin * element_bytes(plan_.inside[run].type);
      scatter_.data[run] = gather_.data[run] = static_cast<std::byte*>(input.data[of.parameter]) + bytes;
      scatter_.senders[run] = advanced(input.senders[of.parameter], of.begin);
    }
    std::size_t across = 0, inside = 0;
    for (std::size_t r = 0; r < rails_.size(); ++r) {
      const Rail& rail = plan_.rails[r];
      for (std::size_t i = 0; i < rail.own_runs.size(); ++i) {
        const std::size_t run = rail.own_runs[i];
        const PlannedParameter& planned = rail.across[i];
        rails_[r].data[i] = scatter_.data[run];
        rails_[r].senders[i] = gather_.senders[run] = {};
        if (!planned.coder->lossless(planned.type)) {
          rails_[r].senders[i] = advanced(input.stages[0], across);
          across += planned.count;
        }
        if (!plan_.inside[run].coder->lossless(planned.type)) {
          gather_.senders[run] = advanced(input.stages[1], inside);
          inside += planned.count;
        }
      }
    }
    scatter_.begin(input, {}, plan_.scatter.chunks.size(), input.nonfinite);
    for (std::size_t r = 0; r < rails_.size(); ++r)
      rails_[r].begin(input, advanced(input.owner, plan_.rails[r].owner_at), 0, 0);
    gather_.begin(input, {}, 0, 0);
    finished_ = false;
    settle();
  }

  /// What goes across comes first, for the slow link to have something to do.
  bool advance() override {
    if (finished_) return false;
    bool progressed = false;
    const std::size_t scattered = scatter_.reduction->in_place();
    const bool all_scattered = scattered == plan_.scatter.chunks.size();
    const std::size_t back_each = plan_.gather.passes_on ? 1 : plan_.group;
    std::size_t summed = plan_.gather.chunks.size();
    for (std::size_t r = 0; r < rails_.size(); ++r) {
      BlockReduction& rail = *rails_[r].reduction;
      const std::size_t chunks = plan_.rails[r].sum.chunks.size();
      rail.allow(all_scattered ? chunks : scattered / plan_.group);
      progressed = rail.advance() || progressed;
      if (rail.in_place() != chunks) summed = std::min(summed, rail.in_place() * back_each);
    }
    gather_.reduction->allow(summed);
    for (const Stage* stage : {&gather_, &scatter_}) progressed = stage->reduction->advance() || progressed;
    settle();
    return progressed;
  }
  bool finished() const override { return finished_; }
  const Statistics& statistics() const override { return statistics_; }
  std::size_t frame_bytes() const override {
    std::size_t bytes = scatter_.reduction->frame_bytes() + gather_.reduction->frame_bytes();
    for (const Stage& rail : rails_) bytes += rail.reduction->frame_bytes();
    for (const KeptResults& kept : kept_) bytes += kept.bytes();
    return bytes;
  }
  /// Sums of other nodes have come, which all of their ranks went into.
  bool wants_wire() const override {
    return scatter_.reduction->wants_wire() &&
           std::any_of(rails_.begin(), rails_.end(), [](const Stage& r) { return r.reduction->begun_everywhere(); });
  }
  /// What is summed inside goes on to the other nodes and back.
  void hold(bool held) override { scatter_.reduction->hold(held); }
  std::string waiting_for() const override {
    const std::string none = "none";
    if (std::string ranks = scatter_.reduction->waiting_for(); ranks != none) return ranks;
    for (const Stage& rail : rails_)
      if (std::string ranks = rail.reduction->waiting_for(); ranks != none) return ranks;
    return gather_.reduction->waiting_for();
  }

 private:
  /// Its runs as a BlockReduction takes them.
  struct Stage {
    std::unique_ptr<BlockReduction> reduction;
    std::vector<void*> data;
    std::vector<Residual> senders;

    void make(Transport& group, const BucketPlan& plan, std::span<const PlannedParameter> runs,
              const FrameIdentity& identity, float divisor) {
      reduction = std::make_unique<BlockReduction>(group, plan, runs, identity, divisor);
      data.resize(runs.size());
      senders.resize(runs.size());
    }
    void begin(const ReductionInput& whole, Residual owner, std::size_t allowed, std::uint64_t nonfinite) {
      ReductionInput input = whole;
      input.data = data;
      input.senders = senders;
      input.owner = owner;
      input.nonfinite = nonfinite;
      input.momenta = input.stages = {};
      reduction->allow(allowed);
      reduction->begin(input);
    }
  };

  /// Whether that was all; if so, what it took.
  void settle() {
    finished_ = scatter_.reduction->finished() && gather_.reduction->finished() &&
                std::all_of(rails_.begin(), rails_.end(), [](const Stage& r) { return r.reduction->finished(); });
    if (!finished_) return;
    statistics_ = scatter_.reduction->statistics();
    const std::uint64_t bytes = statistics_.gradient_bytes;
    for (const Stage& rail : rails_) statistics_ += rail.reduction->statistics();
    statistics_ += gather_.reduction->statistics();
    statistics_.gradient_bytes = bytes;
    statistics_.calls = 1;
  }

  const HierarchicalPlan& plan_;
  GroupTransport node_;
  std::vector<std::unique_ptr<GroupTransport>> rail_members_;  ///< by rail of the plan
  Stage scatter_, gather_;
  std::vector<Stage> rails_;
  std::vector<KeptResults> kept_;  ///< by rail, where results are passed on
  bool finished_ = true;
  Statistics statistics_;
};

}  // namespace tightwire
