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
  BucketPlan scatter;
  /// The way back. Where the stages inside lose nothing, results are passed on as the bytes that they came in from
  /// across, if these are fewer: `back` is encoded as across then, and chunks are those of the sum across.
  BucketPlan gather;
  std::vector<PlannedParameter> back;
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
    of_parts_.resize(parts_.size());
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
    for (PartRuns& part : of_parts_) part.before.push_back(part.runs.size());
    for (Rail& rail : plan_.rails) finish(rail);
    plan_return();
    return std::move(plan_);
  }

 private:
  /// The runs of a part, and how many of them come before each chunk.
  struct PartRuns {
    std::vector<std::size_t> runs, before;
  };

  void add_chunk(const ElementLine& line, std::size_t begin, std::size_t end) {
    Chunk& chunk = plan_.scatter.chunks.emplace_back();
    chunk.shares.resize(static_cast<std::size_t>(plan_.scatter.ranks));
    std::size_t from = begin, unused = 0;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      of_parts_[p].before.push_back(of_parts_[p].runs.size());
      const std::size_t cut = begin + (end - begin) * parts_[p].numerator / parts_[p].denominator;
      const std::size_t to = p + 1 == parts_.size() ? end : std::clamp(line.cut(cut), from, end);
      Share& share = chunk.shares[parts_[p].places[node_]];
      for (const Slice& slice : line.share(from, to, unused).slices) {
        const PlannedParameter& whole = parameters_[slice.parameter];
        of_parts_[p].runs.push_back(plan_.runs.size());
        share.slices.push_back({plan_.runs.size(), 0, slice.count, share.payload_bytes, 0});
        share.payload_bytes += inside_->wire_bytes(slice.count);
        plan_.encoded_inside += inside_->wire_bytes(slice.count);
        plan_.runs.push_back({slice.parameter, slice.begin});
        plan_.inside.push_back({slice.count, whole.type, inside_, whole.number, false, slice.begin});
      }
      from = to;
    }
  }

  /// A run as it is encoded across.
  PlannedParameter across(std::size_t run) const {
    const PlannedParameter& of_inside = plan_.inside[run];
    PlannedParameter planned = parameters_[plan_.runs[run].parameter];
    planned.count = of_inside.count;
    planned.first = of_inside.first;
    return planned;
  }

  /// The runs of a part in the chunk of a sum across that begins with this one.
  std::span<const std::size_t> runs_of(std::size_t part, std::size_t chunk) const {
    const PartRuns& of = of_parts_[part];
    const std::size_t first = of.before[chunk], last = of.before[std::min(chunk + plan_.group, of.before.size() - 1)];
    return std::span(of.runs).subspan(first, last - first);
  }

  /// Plans the sum of a part.
  void finish(Rail& rail) {
    rail.owner_at = plan_.owned;
    rail.own_runs = of_parts_[rail.part].runs;
    for (const std::size_t run : rail.own_runs) {
      PlannedParameter planned = across(run);
      if (!planned.coder->lossless(planned.type)) plan_.across_elements += planned.count;
      if (!inside_->lossless(planned.type)) plan_.inside_elements += planned.count;
      rail.sum.element_bytes += planned.count * element_bytes(planned.type);
      rail.across.push_back(std::move(planned));
    }
    std::size_t first = 0;
    for (std::size_t chunk = 0; chunk < plan_.scatter.chunks.size(); chunk += plan_.group) {
      const std::size_t runs = runs_of(rail.part, chunk).size();
      rail.sum.chunks.push_back({shares_across(std::span(rail.across).subspan(first, runs), rail.sum.owned)});
      for (Share& share : rail.sum.chunks.back().shares)
        for (Slice& slice : share.slices) slice.parameter += first;
      first += runs;
    }
    plan_.owned += rail.sum.owned[node_];
  }

  /// By node, its share of the sum of these runs.
  static std::vector<Share> shares_across(std::span<const PlannedParameter> runs, std::vector<std::size_t>& owned) {
    const ElementLine line(runs);
    std::vector<Share> shares;
    std::size_t from = 0;
    for (std::size_t node = 0; node < owned.size(); ++node) {
      const std::size_t to = std::max(from, line.cut(line.size() * (node + 1) / owned.size()));
      shares.push_back(line.share(from, to, owned[node]));
      from = to;
    }
    return shares;
  }

  void plan_return() {
    const bool lossless = std::all_of(plan_.inside.begin(), plan_.inside.end(),
                                      [](const PlannedParameter& run) { return run.coder->lossless(run.type); });
    plan_.gather = plan_.scatter;
    plan_.gather.operation = Operation::all_gather;
    plan_.gather.passes_on = lossless && plan_.encoded_across < plan_.encoded_inside;
    if (!plan_.gather.passes_on) {
      plan_.back = plan_.inside;
      return;
    }
    for (std::size_t run = 0; run < plan_.runs.size(); ++run) plan_.back.push_back(across(run));
    plan_.gather.chunks.clear();
    for (std::size_t chunk = 0; chunk < plan_.scatter.chunks.size(); chunk += plan_.group) {
      Chunk& passed = plan_.gather.chunks.emplace_back();
      passed.shares.resize(static_cast<std::size_t>(plan_.gather.ranks));
      for (std::size_t p = 0; p < parts_.size(); ++p) pass_on(p, chunk, passed.shares[parts_[p].places[node_]]);
    }
  }
  /// Adds to a share of the way back what the sum of a part is encoded in, in the order of its owners.
  void pass_on(std::size_t part, std::size_t chunk, Share& share) const {
    const std::span<const std::size_t> runs = runs_of(part, chunk);
    std::vector<PlannedParameter> planned;
    for (const std::size_t run : runs) planned.push_back(plan_.back[run]);
    std::vector<std::size_t> owned(plan_.nodes.nodes(), 0);
    for (const Share& result : shares_across(planned, owned)) {
      for (const Slice& slice : result.slices)
        share.slices.push_back(
            {runs[slice.parameter], slice.begin, slice.count, share.payload_bytes + slice.wire_at, 0});
      share.payload_bytes += result.payload_bytes;
    }
  }

  std::span<const PlannedParameter> parameters_;
  const std::shared_ptr<const Coder>& inside_;
  std::size_t node_;
  std::vector<Part> parts_;
  HierarchicalPlan plan_;
  std::vector<PartRuns> of_parts_;
};

}  // namespace detail

/// Depends only on its arguments. Cost: linear in slices.
inline HierarchicalPlan make_hierarchical_plan(std::span<const PlannedParameter> parameters, const Nodes& nodes,
                                               int rank, const std::shared_ptr<const Coder>& inside,
                                               const PlanOptions& options) {
  return detail::HierarchicalPlanning(parameters, nodes, rank, inside).make(options);
}

}  // namespace tightwire
