#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string>
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

/// A part of every chunk, which one rank of each node sums there, and they with each other.
///
/// A node cuts a chunk evenly between its ranks, so that each works on as much as the others. Nodes of other sizes have
/// other cuts; parts lie between the cuts of all nodes, and so belong to one rank of each.
struct Part {
  std::size_t numerator, denominator;  ///< where it ends, as a fraction of the chunk
  std::vector<std::size_t> places;     ///< by node, of the rank there
};

/// Cost: the number of different cuts, which for nodes of up to R ranks is below R^2 / 2.
inline std::vector<Part> parts_of(const Nodes& nodes) {
  std::vector<Part> parts;
  for (const auto& node : nodes.ranks)
    for (std::size_t k = 1; k <= node.size(); ++k) {
      const std::size_t common = std::gcd(k, node.size());
      const auto same = [&](const Part& p) {
        return p.numerator == k / common && p.denominator == node.size() / common;
      };
      if (std::none_of(parts.begin(), parts.end(), same)) parts.push_back({k / common, node.size() / common, {}});
    }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.numerator * b.denominator < b.numerator * a.denominator; });
  for (Part& part : parts)
    for (const auto& node : nodes.ranks)
      part.places.push_back((part.numerator * node.size() + part.denominator - 1) / part.denominator - 1);
  return parts;
}

/// The all-reduce of a part across nodes.
struct Rail {
  std::size_t part;
  std::vector<int> members;           ///< ranks of the job, by node
  std::vector<std::size_t> own_runs;  ///< in the plan's `runs`
  std::vector<PlannedParameter> across;
  BucketPlan sum;
  std::size_t owner_at = 0;  ///< where in the rank's owner residual that of this part begins
};

/// The messages of a bucket in a hierarchy, as a rank at some place of its node sees them.
///
/// Chunk number c of the sum across is made of `group` chunks of the stages inside, from c x group on.
struct HierarchicalPlan {
  Nodes nodes;
  // Inside a node: every run of the bucket, a share of each chunk per place.
  std::vector<Run> runs;
  std::vector<PlannedParameter> inside;
  BucketPlan scatter, gather;
  // Across nodes: the parts that this rank sums.
  std::vector<Rail> rails;
  std::size_t group = 1;
  std::size_t owned = 0;  ///< elements of owner residual
  /// Elements of own runs whose contribution across, or whose way back inside, may lose something.
  std::size_t across_elements = 0, inside_elements = 0;
  // Encoded sizes of the whole bucket, the same for every rank.
  std::size_t encoded_inside = 0, encoded_across = 0;

  bool empty() const { return runs.empty(); }
};

namespace detail {

/// Makes a HierarchicalPlan chunk by chunk.
class HierarchicalPlanning {
 public:
  HierarchicalPlanning(std::span<const PlannedParameter> parameters, const Nodes& nodes, int rank,
                       const std::shared_ptr<const Coder>& inside)
      : parameters_(parameters), inside_(inside), node_(nodes.place_of(rank).first), parts_(parts_of(nodes)) {
    const std::size_t place = nodes.place_of(rank).second, per_node = nodes.ranks[node_].size();
    plan_.nodes = nodes;
    plan_.scatter.operation = Operation::reduce_scatter;
    plan_.scatter.ranks = static_cast<int>(per_node);
    plan_.scatter.owned.resize(per_node, 0);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].places[node_] != place) continue;
      Rail& rail = plan_.rails.emplace_back();
      rail.part = p;
      for (std::size_t node = 0; node < nodes.nodes(); ++node)
        rail.members.push_back(nodes.ranks[node][parts_[p].places[node]]);
      rail.sum.ranks = static_cast<int>(nodes.nodes());
      rail.sum.owned.resize(nodes.nodes(), 0);
    }
    runs_before_.resize(plan_.rails.size());
  }

  HierarchicalPlan make(const PlanOptions& options) {
    const ElementLine line(parameters_, inside_->block());
    for (const PlannedParameter& p : parameters_) {
      plan_.scatter.element_bytes += p.count * element_bytes(p.type);
      plan_.encoded_across += p.coder->wire_bytes(p.count);
    }
    const std::size_t places = plan_.nodes.largest();
    // Half as long as a flat plan's: while the first chunk is summed inside, and the last one comes back, nothing is on
    // the wire.
    const std::size_t share = options.share_elements != 0
                                  ? options.share_elements
                                  : open_share_length(2 * static_cast<int>(places), line.size(), plan_.encoded_across);
    const std::size_t length = std::clamp<std::size_t>(share, 1, line.size() + 1) * places;
    // So that what a node sends across at once is worth sending too.
    constexpr std::size_t kLeastAcross = std::size_t{1} << 14;
    const std::size_t across = options.share_elements != 0 ? options.share_elements : kLeastAcross;
    plan_.group = std::max<std::size_t>(1, (across * plan_.nodes.nodes() * places + length - 1) / length);
    for (std::size_t begin = 0; begin < line.size();) {
      const std::size_t end = std::max(line.cut(begin + length), line.cut(begin + 1));
      add_chunk(line, begin, end);
      begin = end;
    }
    plan_.gather = plan_.scatter;
    plan_.gather.operation = Operation::all_gather;
    for (std::size_t rail = 0; rail < plan_.rails.size(); ++rail) finish(plan_.rails[rail], runs_before_[rail]);
    return std::move(plan_);
  }

 private:
  void add_chunk(const ElementLine& line, std::size_t begin, std::size_t end) {
    Chunk& chunk = plan_.scatter.chunks.emplace_back();
    chunk.shares.resize(static_cast<std::size_t>(plan_.scatter.ranks));
    std::size_t from = begin, unused = 0, next = 0;
    for (std::size_t i = 0; i < plan_.rails.size(); ++i) runs_before_[i].push_back(plan_.rails[i].own_runs.size());
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const std::size_t cut = begin + (end - begin) * parts_[p].numerator / parts_[p].denominator;
      const std::size_t to = p + 1 == parts_.size() ? end : std::clamp(line.cut(cut), from, end);
      Rail* const own = next < plan_.rails.size() && plan_.rails[next].part == p ? &plan_.rails[next++] : nullptr;
      Share& share = chunk.shares[parts_[p].places[node_]];
      for (const Slice& slice : line.share(from, to, unused).slices) {
        const PlannedParameter& whole = parameters_[slice.parameter];
        if (own != nullptr) own->own_runs.push_back(plan_.runs.size());
        share.slices.push_back({plan_.runs.size(), 0, slice.count, share.payload_bytes, 0});
        share.payload_bytes += inside_->wire_bytes(slice.count);
        plan_.encoded_inside += inside_->wire_bytes(slice.count);
        plan_.runs.push_back({slice.parameter, slice.begin});
        plan_.inside.push_back({slice.count, whole.type, inside_, whole.number, false, slice.begin});
      }
      from = to;
    }
  }

  /// Plans the sum of a part, of which there are so many runs before each chunk.
  void finish(Rail& rail, std::vector<std::size_t>& before) {
    rail.owner_at = plan_.owned;
    for (const std::size_t run : rail.own_runs) {
      const PlannedParameter& of_inside = plan_.inside[run];
      PlannedParameter planned = parameters_[plan_.runs[run].parameter];
      planned.count = of_inside.count;
      planned.first = of_inside.first;
      if (!planned.coder->lossless(planned.type)) plan_.across_elements += planned.count;
      if (!inside_->lossless(planned.type)) plan_.inside_elements += planned.count;
      rail.sum.element_bytes += planned.count * element_bytes(planned.type);
      rail.across.push_back(std::move(planned));
    }
    before.push_back(rail.own_runs.size());
    for (std::size_t chunk = 0; chunk + 1 < before.size(); chunk += plan_.group) {
      const std::size_t first = before[chunk], last = before[std::min(chunk + plan_.group, before.size() - 1)];
      add_sum(rail, first, std::span(rail.across).subspan(first, last - first));
    }
    plan_.owned += rail.sum.owned[node_];
  }
  static void add_sum(Rail& rail, std::size_t first, std::span<const PlannedParameter> runs) {
    const ElementLine line(runs);
    Chunk& chunk = rail.sum.chunks.emplace_back();
    std::size_t from = 0;
    const std::size_t nodes = rail.members.size();
    for (std::size_t node = 0; node < nodes; ++node) {
      const std::size_t to = std::max(from, line.cut(line.size() * (node + 1) / nodes));
      Share& share = chunk.shares.emplace_back(line.share(from, to, rail.sum.owned[node]));
      for (Slice& slice : share.slices) slice.parameter += first;
      from = to;
    }
  }

  std::span<const PlannedParameter> parameters_;
  const std::shared_ptr<const Coder>& inside_;
  std::size_t node_;
  std::vector<Part> parts_;
  HierarchicalPlan plan_;
  std::vector<std::vector<std::size_t>> runs_before_;  ///< by rail and chunk
};

}  // namespace detail

/// Depends only on its arguments. Cost: linear in slices.
inline HierarchicalPlan make_hierarchical_plan(std::span<const PlannedParameter> parameters, const Nodes& nodes,
                                               int rank, const std::shared_ptr<const Coder>& inside,
                                               const PlanOptions& options) {
  return detail::HierarchicalPlanning(parameters, nodes, rank, inside).make(options);
}

}  // namespace tightwire
