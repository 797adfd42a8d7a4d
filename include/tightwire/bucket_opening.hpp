#pragma once
#include <cstddef>
#include <vector>

#include <tightwire/bucket.hpp>
#include <tightwire/bucket_planning.hpp>
#include <tightwire/error_memory.hpp>

namespace tightwire {

/// Pointers and residuals of a buffer of which every rank has a shard, in the places that the reduction looks at.
/// `residual` is of all shards, or of ours.
inline void open_shards(Bucket& bucket, const Residual& residual, int rank) {
  const bool all = bucket.plan.contributes();
  for (std::size_t shard = 0; shard < bucket.planned.size(); ++shard) {
    const PlannedParameter& planned = bucket.planned[shard];
    bucket.blocks.pointers[shard] =
        static_cast<std::byte*>(bucket.pointers.front()) + planned.first * element_bytes(planned.type);
    const bool ours = shard == static_cast<std::size_t>(rank);
    bucket.blocks.senders[shard] = all ? advanced(residual, planned.first) : ours ? residual : Residual{};
  }
}

/// Pointers and residuals of a bucket in the places that its reductions look at, for its next use in this step.
inline void open_bucket(Bucket& bucket, const std::vector<ParameterMemory>& of_parameters, ErrorMemory& memory,
                        int rank) {
  const auto open = [&](ErrorMemory::Region region) {
    return region == ParameterMemory::kNone ? Residual{} : memory.open(region);
  };
  if (bucket.sharded()) {
    open_shards(bucket, open(of_parameters[bucket.parameters.front()].residual), rank);
  } else {
    for (BucketPart* part : bucket.parts())
      for (std::size_t i = 0; i < part->positions.size(); ++i) {
        const ParameterMemory& of_parameter = of_parameters[bucket.parameters[part->positions[i]]];
        part->pointers[i] = bucket.pointers[part->positions[i]];
        part->senders[i] = open(of_parameter.residual);
        if (!part->momenta.empty()) part->momenta[i] = open(of_parameter.momentum);
      }
  }
  for (std::size_t i = 0; i < bucket.stage_regions.size(); ++i) bucket.stages[i] = memory.open(bucket.stage_regions[i]);
}

/// Begins the reductions of a bucket that was opened. `common`: what is the same for all of a step.
inline void begin_reductions(Bucket& bucket, ErrorMemory& memory, const ReductionInput& common) {
  ReductionInput input = common;
  input.owner = bucket.has_owner_residual ? memory.open(bucket.owner_region) : Residual{};
  input.sequence = bucket.sequence;
  input.use = bucket.use;
  input.stages = bucket.stages;
  std::size_t next = 0;
  for (const BucketPart* part : bucket.parts()) {
    if (part->positions.empty()) continue;
    input.data = part->pointers;
    input.senders = part->senders;
    input.momenta = part->momenta;
    bucket.operation.reductions[next++]->begin(input);
  }
}

}  // namespace tightwire
