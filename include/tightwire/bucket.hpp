#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tightwire/detail/float_environment.hpp>
#include <tightwire/engine.hpp>
#include <tightwire/error_memory.hpp>
#include <tightwire/hierarchical_plan.hpp>
#include <tightwire/low_rank/plan.hpp>
#include <tightwire/plan.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/statistics.hpp>

namespace tightwire {

/// The parameters of a bucket that one of its reductions sums.
struct BucketPart {
  std::vector<std::size_t> positions;  ///< in the bucket
  std::vector<void*> pointers;
  std::vector<Residual> senders;
  std::vector<Residual> momenta;  ///< empty without momentum correction

  void add(std::size_t position) {
    positions.push_back(position);
    pointers.push_back(nullptr);
    senders.emplace_back();
  }
};

/// Parameters that are reduced by one call, as a Session keeps them.
struct Bucket {
  std::vector<std::size_t> parameters;  ///< of the Session
  std::vector<void*> pointers;

  // What is encoded in blocks.
  BucketPart blocks;
  std::vector<PlannedParameter> planned;
  BucketPlan plan;
  /// Of a parameter that is sharded: shards in place of parameters, one per rank.
  bool sharded() const { return plan.operation != Operation::all_reduce; }
  HierarchicalPlan hierarchical_plan;  ///< empty: flat
  std::vector<ErrorMemory::Region> stage_regions;
  std::vector<Residual> stages;
  ErrorMemory::Region owner_region = 0;
  bool has_owner_residual = false;

  // What is sent in part.
  BucketPart chosen;
  std::vector<sparse::PlannedSparse> planned_sparse;
  sparse::Plan sparse_plan;

  // What is drawn at random, and the drawn elements as parameters of their own.
  BucketPart drawn;
  std::vector<sparse::PlannedSparse> planned_random;
  std::vector<PlannedParameter> drawn_elements;
  BucketPlan random_plan;

  // What is sent as factors, first in its part, and what goes along with them.
  BucketPart matrices;
  std::vector<low_rank::PlannedMatrix> planned_matrices;
  low_rank::Plan low_rank_plan;

  /// In the order of the operation's reductions, of which empty parts have none.
  std::array<BucketPart*, 4> parts() { return {&blocks, &chosen, &drawn, &matrices}; }

  /// See Reduction. Not while the bucket is under way.
  void settle_residuals() const {
    const detail::FloatEnvironment environment;
    for (const auto& reduction : operation.reductions) reduction->settle_residuals();
  }

  /// Memory for frames, in bytes.
  std::size_t frame_bytes() const {
    std::size_t bytes = 0;
    for (const auto& reduction : operation.reductions) bytes += reduction->frame_bytes();
    return bytes;
  }

  mutable Engine::Operation operation;
  /// What is drawn at random goes by `use`, and is drawn again after a rollback.
  void end_step(bool keep) { (keep ? kept_use : use) = keep ? use : kept_use; }

  std::uint32_t sequence = 0;  ///< reductions begun
  std::uint32_t use = 0;       ///< those in steps that were kept, and in this one
  std::uint32_t kept_use = 0;  ///< those in steps that were kept
  bool started = false;        ///< begun and not yet waited for
  Statistics last;
};

}  // namespace tightwire
