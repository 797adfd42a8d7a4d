#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <tightwire/plan.hpp>

namespace tightwire {

/// Cuts a parameter into one shard for every rank, or for `broadcast` into the whole for the root and nothing for the
/// others. The count must be a multiple of the ranks.
inline std::vector<PlannedParameter> cut_into_shards(const PlannedParameter& whole, Operation operation, int ranks,
                                                     int root) {
  std::vector<PlannedParameter> shards(static_cast<std::size_t>(ranks), whole);
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    PlannedParameter& shard = shards[rank];
    if (operation == Operation::broadcast) {
      shard.count = rank == static_cast<std::size_t>(root) ? whole.count : 0;
    } else {
      shard.count = whole.count / shards.size();
      shard.first = rank * shard.count;
    }
  }
  return shards;
}

/// Plans what shard p of rank p goes through. Chunks run through all shards side by side.
inline BucketPlan make_sharded_plan(const std::vector<PlannedParameter>& shards, Operation operation,
                                    const PlanOptions& options) {
  BucketPlan plan;
  plan.operation = operation;
  plan.ranks = static_cast<int>(shards.size());
  plan.owned.resize(shards.size(), 0);
  const Coder& coder = *shards.front().coder;
  std::size_t elements = 0, longest = 0, wire = 0;
  for (const PlannedParameter& shard : shards) {
    elements += shard.count;
    longest = std::max(longest, shard.count);
    wire += coder.wire_bytes(shard.count);
  }
  plan.element_bytes = elements * element_bytes(shards.front().type);
  const std::size_t wanted =
      options.share_elements != 0 ? options.share_elements : open_share_length(plan.ranks, elements, wire);
  const std::size_t length = (std::max<std::size_t>(wanted, 1) + coder.block() - 1) / coder.block() * coder.block();
  for (std::size_t begin = 0; begin < longest; begin += length) {
    Chunk chunk;
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      Share& share = chunk.shares.emplace_back();
      if (begin >= shards[rank].count) continue;
      const std::size_t count = std::min(length, shards[rank].count - begin);
      share.slices.push_back({rank, begin, count, 0, 0});
      share.payload_bytes = coder.wire_bytes(count);
    }
    plan.chunks.push_back(std::move(chunk));
  }
  return plan;
}

}  // namespace tightwire
