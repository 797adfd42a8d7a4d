#pragma once
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include <tightwire/bucket.hpp>
#include <tightwire/bucket_planning.hpp>
#include <tightwire/error_memory.hpp>
#include <tightwire/state.hpp>

namespace tightwire::detail {

/// Residuals that a rank has of some runs of elements only, and what they are saved as.
inline constexpr state::Kind kRunKinds[] = {state::Kind::owner_residual, state::Kind::node_residual,
                                            state::Kind::result_residual};

/// Where a bucket has its residuals of such a kind.
inline std::optional<ErrorMemory::Region> region_of(const Bucket& bucket, state::Kind kind) {
  if (kind == state::Kind::owner_residual)
    return bucket.has_owner_residual ? std::optional(bucket.owner_region) : std::nullopt;
  if (bucket.stage_regions.empty()) return std::nullopt;
  return bucket.stage_regions[kind == state::Kind::node_residual ? 0 : 1];
}

/// Calls f(parameter, first element, count, place in the region) for what a rank owns of a flat bucket and may lose
/// part of.
template <class F>
void for_owned_flat(const Bucket& bucket, int rank, const F& f) {
  if (bucket.plan.everyone_sums() || bucket.sharded()) return;
  for (const Chunk& chunk : bucket.plan.chunks)
    for (const Slice& slice : chunk.shares[static_cast<std::size_t>(rank)].slices) {
      const PlannedParameter& planned = bucket.planned[slice.parameter];
      if (planned.coder->lossless(planned.type)) continue;
      f(bucket.parameters[bucket.blocks.positions[slice.parameter]], slice.begin, slice.count, slice.error_at);
    }
}

/// The same of a bucket that goes over nodes, where the plan is this rank's.
template <class F>
void for_runs_over_nodes(const Bucket& bucket, state::Kind kind, int rank, const F& f) {
  const HierarchicalPlan& plan = bucket.hierarchical_plan;
  const std::size_t node = plan.nodes.place_of(rank).first;
  std::size_t at = 0;
  for (const Rail& rail : plan.rails) {
    const auto id = [&](std::size_t own) {
      return bucket.parameters[bucket.blocks.positions[plan.runs[rail.own_runs[own]].parameter]];
    };
    if (kind == state::Kind::owner_residual) {
      for (const Chunk& chunk : rail.sum.chunks)
        for (const Slice& slice : chunk.shares[node].slices) {
          const PlannedParameter& planned = rail.across[slice.parameter];
          if (!planned.coder->lossless(planned.type))
            f(id(slice.parameter), planned.first + slice.begin, slice.count, rail.owner_at + slice.error_at);
        }
      continue;
    }
    for (std::size_t own = 0; own < rail.own_runs.size(); ++own) {
      const PlannedParameter& of_inside = plan.inside[rail.own_runs[own]];
      const PlannedParameter& planned = kind == state::Kind::node_residual ? rail.across[own] : of_inside;
      if (planned.coder->lossless(planned.type)) continue;
      f(id(own), planned.first, planned.count, at);
      at += planned.count;
    }
  }
}

/// Calls f(parameter, first element, count, place in the region) for the runs that a rank has residuals of.
template <class F>
void for_runs(const Bucket& bucket, state::Kind kind, int rank, const F& f) {
  if (!region_of(bucket, kind)) return;
  if (!bucket.hierarchical_plan.empty())
    for_runs_over_nodes(bucket, kind, rank, f);
  else if (kind == state::Kind::owner_residual)
    for_owned_flat(bucket, rank, f);
}

/// Which kinds of residuals a parameter has, on all ranks together.
struct KeptResiduals {
  bool sender = false, node = false, owner = false, result = false;
  const Bucket* bucket = nullptr;  ///< where it is encoded in blocks
};

inline KeptResiduals kept_residuals(const std::deque<Bucket>& buckets, std::size_t id, const ParameterMemory& memory,
                                    bool error_feedback) {
  KeptResiduals kept{.sender = memory.residual != ParameterMemory::kNone};
  for (const Bucket& bucket : buckets)
    for (std::size_t i = 0; i < bucket.planned.size(); ++i) {
      if (bucket.parameters[bucket.blocks.positions[i]] != id) continue;
      kept.bucket = &bucket;
      const PlannedParameter& planned = bucket.planned[i];
      const bool over_nodes = !bucket.hierarchical_plan.empty();
      const bool lossy = error_feedback && !bucket.sharded() && !planned.coder->lossless(planned.type);
      kept.owner = lossy && (over_nodes || !bucket.plan.everyone_sums());
      kept.node = lossy && over_nodes;
      kept.result = over_nodes && kept.sender;  // both are lost by the codec inside
      return kept;
    }
  return kept;
}

}  // namespace tightwire::detail
