#pragma once
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
/// of the node's sums among those at the same place of every node, an all_gather inside. Sums are formed in the order
/// of the ranks of a node, then of the nodes. Whatever a stage drops is kept by who dropped it.
class HierarchicalReduction final : public Reduction {
 public:
  /// Of the stages, in order.
  using Identities = std::array<FrameIdentity, 3>;

  /// The plan must outlive it.
  HierarchicalReduction(Transport& transport, const HierarchicalPlan& plan, const Identities& identities, float divisor)
      : plan_(plan),
        node_(transport, plan.nodes.ranks[plan.nodes.place_of(transport.rank()).first]),
        rail_(transport, plan.nodes.across(plan.nodes.place_of(transport.rank()).second)) {
    stages_[0] = std::make_unique<BlockReduction>(node_, plan.scatter, plan.inside, identities[0], 1.0f);
    stages_[1] = std::make_unique<BlockReduction>(rail_, plan.sum, plan.across, identities[1], divisor);
    stages_[2] = std::make_unique<BlockReduction>(node_, plan.gather, plan.inside, identities[2], 1.0f);
    for (auto* data : {&data_[0], &data_[2]}) data->resize(plan.runs.size());
    data_[1].resize(plan.across.size());
    for (std::size_t stage = 0; stage < 3; ++stage) senders_[stage].resize(data_[stage].size());
  }

  /// Residuals of stages: of our contribution across, in the order of our runs, and of what goes back inside.
  void begin(const ReductionInput& input) override {
    input_ = input;
    for (std::size_t run = 0; run < plan_.runs.size(); ++run) {
      const Run& of = plan_.runs[run];
      const std::size_t bytes = of.begin * element_bytes(plan_.inside[run].type);
      data_[0][run] = data_[2][run] = static_cast<std::byte*>(input.data[of.parameter]) + bytes;
      senders_[0][run] = advanced(input.senders[of.parameter], of.begin);
    }
    std::size_t across = 0, inside = 0;
    for (std::size_t i = 0; i < plan_.own_runs.size(); ++i) {
      const std::size_t run = plan_.own_runs[i];
      const PlannedParameter& planned = plan_.across[i];
      data_[1][i] = data_[0][run];
      senders_[1][i] = senders_[2][run] = {};
      if (!planned.coder->lossless(planned.type)) {
        senders_[1][i] = advanced(input.stages[0], across);
        across += planned.count;
      }
      if (!plan_.inside[run].coder->lossless(planned.type)) {
        senders_[2][run] = advanced(input.stages[1], inside);
        inside += planned.count;
      }
    }
    statistics_ = {};
    stage_ = 0;
    enter();
  }

  bool advance() override {
    if (finished()) return false;
    const bool progressed = guarded([&] { return stages_[stage_]->advance(); });
    if (!stages_[stage_]->finished()) return progressed;
    add(stages_[stage_]->statistics());
    if (++stage_ < 3) enter();
    return true;
  }
  bool finished() const override { return stage_ == 3; }
  const Statistics& statistics() const override { return statistics_; }
  std::string waiting_for() const override { return finished() ? "none" : stages_[stage_]->waiting_for(); }

 private:
  void enter() {
    ReductionInput inner = input_;
    inner.data = data_[stage_];
    inner.senders = senders_[stage_];
    if (stage_ != 1) inner.owner = {};
    inner.momenta = inner.stages = {};
    if (stage_ != 0) inner.nonfinite = 0;
    stages_[stage_]->begin(inner);
  }
  /// Ranks in errors of a stage are numbered within their group.
  template <class F>
  bool guarded(const F& f) {
    try {
      return f();
    } catch (const Error& error) {
      const bool inside = stage_ != 1;
      throw Error(error.code(), std::string(error.what()) + " (" + (inside ? "inside a node" : "across nodes") +
                                    ", where rank i is number i of " + (inside ? node_ : rail_).members() + ")");
    }
  }
  void add(const Statistics& inner) {
    const std::uint64_t bytes = stage_ == 0 ? inner.gradient_bytes : statistics_.gradient_bytes;
    statistics_ += inner;
    statistics_.gradient_bytes = bytes;
    statistics_.calls = 1;
  }

  const HierarchicalPlan& plan_;
  GroupTransport node_, rail_;
  std::array<std::unique_ptr<BlockReduction>, 3> stages_;
  std::array<std::vector<void*>, 3> data_;
  std::array<std::vector<Residual>, 3> senders_;
  std::size_t stage_ = 3;
  ReductionInput input_{};
  Statistics statistics_;
};

}  // namespace tightwire
