#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <tightwire/hierarchy.hpp>
#include <tightwire/plan.hpp>

namespace tightwire {

/// A run of a parameter of the bucket, as a parameter of its own in a stage.
struct Run {
  std::size_t parameter;  ///< position in the bucket
  std::size_t begin;
};

/// The messages of a bucket in a hierarchy, as a rank at some place of its node sees them.
struct HierarchicalPlan {
  Nodes nodes;
  // Inside a node: every run of the bucket, one share per place.
  std::vector<Run> runs;
  std::vector<PlannedParameter> inside;
  BucketPlan scatter, gather;
  // Across nodes: the runs of one place.
  std::vector<std::size_t> own_runs;  ///< in `runs`
  std::vector<PlannedParameter> across;
  BucketPlan sum;
  /// Elements of own runs whose contribution across, or whose way back inside, may lose something.
  std::size_t across_elements = 0, inside_elements = 0;

  bool empty() const { return runs.empty(); }
};

/// Depends only on its arguments.
inline HierarchicalPlan make_hierarchical_plan(std::span<const PlannedParameter> parameters, const Nodes& nodes,
                                               std::size_t place, const std::shared_ptr<const Coder>& inside,
                                               PlanOptions options) {
  HierarchicalPlan plan;
  plan.nodes = nodes;
  options.algorithm = Algorithm::two_shot;
  const BucketPlan cut = make_plan(parameters, static_cast<int>(nodes.per_node()), options);
  plan.scatter.operation = Operation::reduce_scatter;
  plan.scatter.ranks = cut.ranks;
  plan.scatter.element_bytes = cut.element_bytes;
  plan.scatter.owned.resize(nodes.per_node(), 0);
  for (const Chunk& chunk : cut.chunks) {
    Chunk& inner = plan.scatter.chunks.emplace_back();
    for (std::size_t owner = 0; owner < chunk.shares.size(); ++owner) {
      Share& share = inner.shares.emplace_back();
      for (const Slice& slice : chunk.shares[owner].slices) {
        const PlannedParameter& whole = parameters[slice.parameter];
        if (owner == place) plan.own_runs.push_back(plan.runs.size());
        share.slices.push_back({plan.runs.size(), 0, slice.count, share.payload_bytes, 0});
        share.payload_bytes += inside->wire_bytes(slice.count);
        plan.runs.push_back({slice.parameter, slice.begin});
        plan.inside.push_back({slice.count, whole.type, inside, whole.number, false, slice.begin});
      }
    }
  }
  plan.gather = plan.scatter;
  plan.gather.operation = Operation::all_gather;
  for (const std::size_t run : plan.own_runs) {
    const PlannedParameter& of_inside = plan.inside[run];
    PlannedParameter planned = parameters[plan.runs[run].parameter];
    planned.count = of_inside.count;
    planned.first = of_inside.first;
    if (!planned.coder->lossless(planned.type)) plan.across_elements += planned.count;
    if (!inside->lossless(planned.type)) plan.inside_elements += planned.count;
    plan.across.push_back(std::move(planned));
  }
  plan.sum = make_plan(plan.across, static_cast<int>(nodes.nodes()), options);
  return plan;
}

}  // namespace tightwire
