#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <tightwire/cost_model.hpp>
#include <tightwire/hierarchy.hpp>
#include <tightwire/plan.hpp>

namespace tightwire {

/// The link by which forms are compared, since a plan must be the same on all ranks and none was measured: 25 Gbit/s,
/// 20 us, and 1 us for a message, as `tightwire plan` describes one between nodes.
inline constexpr LinkCost kLinkOfForms{20e-6, 1e-6, 25 / 8e-9, 1};

namespace detail {

/// Node by rank.
inline std::vector<std::size_t> node_of_ranks(const Nodes& nodes, int ranks) {
  std::vector<std::size_t> node_of(static_cast<std::size_t>(ranks));
  for (std::size_t node = 0; node < nodes.nodes(); ++node)
    for (const int rank : nodes.ranks[node]) node_of[static_cast<std::size_t>(rank)] = node;
  return node_of;
}

/// Bytes through the link of the node that sends or receives most, in that direction. Cost: slices, and ranks of a
/// ring.
inline double busiest_link_bytes(const BucketPlan& plan, const Nodes& nodes) {
  std::vector<double> out(nodes.nodes(), 0), in(nodes.nodes(), 0);
  const std::vector<std::size_t> node_of = node_of_ranks(nodes, plan.ranks);
  double partial = 0, result = 0;
  std::vector<double> owned(node_of.size(), 0);
  for (const Chunk& chunk : plan.chunks) {
    partial += static_cast<double>(BucketPlan::partial_frame_bytes(chunk));
    for (std::size_t owner = 0; owner < chunk.shares.size(); ++owner)
      owned[owner] += static_cast<double>(chunk.shares[owner].frame_bytes());
  }
  if (plan.algorithm == Algorithm::ring) {
    result = owned.back();
    for (std::size_t rank = 0; rank + 1 < node_of.size(); ++rank) {
      const std::size_t from = node_of[rank], to = node_of[rank + 1];
      if (from == to) continue;
      out[from] += partial, in[to] += partial;
      out[to] += result, in[from] += result;
    }
  } else {
    for (std::size_t owner = 0; owner < owned.size(); ++owner)
      for (std::size_t node = 0; node < nodes.nodes(); ++node) {
        if (node == node_of[owner]) continue;
        // Contributions of this node's ranks to the owner, and what it sends back.
        const double bytes = owned[owner] * static_cast<double>(nodes.ranks[node].size());
        out[node] += bytes, in[node_of[owner]] += bytes;
        in[node] += bytes, out[node_of[owner]] += bytes;
      }
  }
  return std::max(*std::max_element(out.begin(), out.end()), *std::max_element(in.begin(), in.end()));
}

/// Seconds on the busiest link by the cost model.
inline double seconds_of_form(const BucketPlan& plan, const Nodes& nodes) {
  const double ranks = plan.ranks, chunks = static_cast<double>(plan.chunks.size());
  Stage stage;
  stage.chunks = chunks;
  const bool ring = plan.algorithm == Algorithm::ring;
  stage.across = {chunks * (ring ? 2 : 2 * (ranks - 1)), busiest_link_bytes(plan, nodes)};
  stage.rounds = ring ? 2 * (plan.ranks - 1) : 2;
  if (ring) stage.fill = 2 * (ranks - 2) / chunks;
  return time_of(stage, {plan.ranks, 1, kLinkOfForms, kLinkOfForms}, {}).seconds;
}

}  // namespace detail

/// The form in place of a plan that `automatic` made, by the cost model:
///
///   tree, in place of one_shot, where so many messages take longer than log2(ranks) rounds: above some 100 ranks
///   ring, in place of two_shot, where ranks share the links of known nodes, all parameters fit one, and it is faster
///   by a tenth: then every rank of a node sends as much through its link as in a ring all of them do. Without shared
///   links two_shot sends less, and is faster.
///
/// Depends only on its arguments. Nodes may be none, which are not known.
inline Algorithm form_by_cost(const BucketPlan& plan, std::span<const PlannedParameter> parameters, const Nodes& nodes,
                              PlanOptions options) {
  if (plan.chunks.empty()) return plan.algorithm;
  if (plan.algorithm == Algorithm::one_shot) {
    int rounds = 0;
    while ((1 << rounds) < plan.ranks) ++rounds;
    const double round = kLinkOfForms.latency_seconds + kLinkOfForms.message_seconds;
    const double all = kLinkOfForms.latency_seconds + kLinkOfForms.message_seconds * (plan.ranks - 1);
    return round * rounds < all ? Algorithm::tree : Algorithm::one_shot;
  }
  if (plan.algorithm != Algorithm::two_shot || nodes.nodes() < 2 || nodes.largest() < 2 ||
      !std::all_of(parameters.begin(), parameters.end(), fits_ring))
    return plan.algorithm;
  options.algorithm = Algorithm::ring;
  constexpr double kWorthIt = 0.9;
  const double ring = detail::seconds_of_form(make_plan(parameters, plan.ranks, options), nodes);
  return ring < kWorthIt * detail::seconds_of_form(plan, nodes) ? Algorithm::ring : Algorithm::two_shot;
}

}  // namespace tightwire
