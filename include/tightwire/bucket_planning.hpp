#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/bucket.hpp>
#include <tightwire/collective/block_reduction.hpp>
#include <tightwire/collective/hierarchical_reduction.hpp>
#include <tightwire/collective/low_rank_reduction.hpp>
#include <tightwire/collective/random_reduction.hpp>
#include <tightwire/collective/ring_reduction.hpp>
#include <tightwire/collective/sparse_reduction.hpp>
#include <tightwire/collective/tree_reduction.hpp>
#include <tightwire/error_memory.hpp>
#include <tightwire/form_by_cost.hpp>
#include <tightwire/policy.hpp>
#include <tightwire/session_options.hpp>
#include <tightwire/sharded_plan.hpp>

namespace tightwire {

/// Where the memory of a parameter is: what its contributions lost, and its momentum.
struct ParameterMemory {
  static constexpr ErrorMemory::Region kNone = static_cast<ErrorMemory::Region>(-1);
  ErrorMemory::Region residual = kNone;
  ErrorMemory::Region momentum = kNone;
  std::string basis;       ///< of the residual, see Coder::residual_basis
  std::string sums_basis;  ///< of those of sums, a node's or all ranks'; another one over nodes
};

/// Decides how the parameters of a bucket are reduced, and what memory that takes.
class BucketPlanning {
 public:
  /// `exact_with_factors`: whether what nothing is lost of goes in the messages of the factors of its bucket, where
  /// there are any, or by itself.
  BucketPlanning(const SessionOptions& options, const Transport& transport, ErrorMemory& memory,
                 bool exact_with_factors = true)
      : options_(options),
        rank_(transport.rank()),
        ranks_(transport.size()),
        memory_(memory),
        exact_with_factors_(exact_with_factors),
        beside_blocks_(options.plan) {
    if (beside_blocks_.algorithm == Algorithm::ring || beside_blocks_.algorithm == Algorithm::tree)
      beside_blocks_.algorithm = Algorithm::automatic;
    if (!options.hierarchy) return;
    nodes_ = nodes_of(options.hierarchy, ranks_);
    inside_ = options.hierarchy.inside.coder(ElementType::f32);
    if (inside_->stochastic(true))
      throw Error(Errc::unsupported, "rank " + std::to_string(rank_) + ": seal: inside a node " + inside_->spec() +
                                         " would round stochastically, which only codecs across nodes do");
  }

  /// Throws Error(invalid_argument) for top-k or random-k without error feedback.
  void plan(Bucket& bucket, const std::vector<Parameter>& parameters, std::vector<ParameterMemory>& memory) {
    bucket.pointers.resize(bucket.parameters.size());
    if (const Parameter& first = parameters[bucket.parameters.front()]; first.operation != Operation::all_reduce) {
      add_sharded(bucket, first, memory[bucket.parameters.front()]);
      return;
    }
    const bool hierarchical = goes_through_nodes(bucket, parameters);
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const std::size_t id = bucket.parameters[i];
      add(bucket, i, parameters[id], memory[id], hierarchical);
    }
    if (hierarchical) {
      plan_hierarchy(bucket);
      return;
    }
    plan_matrices(bucket);
    plan_blocks(bucket, parameters);
    bucket.sparse_plan = sparse::make_plan(bucket.planned_sparse, ranks_, beside_blocks_);
    bucket.random_plan = make_plan(bucket.drawn_elements, ranks_, beside_blocks_);
    if (options_.momentum)
      for (BucketPart* part : {&bucket.chosen, &bucket.drawn}) part->momenta.resize(part->positions.size());
    const std::size_t owned = bucket.plan.everyone_sums() ? 0 : bucket.plan.owned[static_cast<std::size_t>(rank_)];
    bucket.has_owner_residual = options_.error_feedback && owned != 0;
    if (bucket.has_owner_residual) bucket.owner_region = memory_.add(owned);
  }

 private:
  /// Sums inside a node are kept in the buffer, and 16 bits would round them. Elements that are chosen or drawn, and
  /// factors, go flat; so does what is small enough for a single round.
  bool goes_through_nodes(const Bucket& bucket, const std::vector<Parameter>& parameters) const {
    if (nodes_.ranks.size() < 2 || nodes_.largest() < 2) return false;
    std::size_t wire = 0, blocks = 0;
    for (const std::size_t id : bucket.parameters) {
      const Codec& codec = options_.policy.choose(parameters[id], options_.codec);
      if (parameters[id].type != ElementType::f32 || codec.sparse() != nullptr || codec.low_rank() != nullptr)
        return false;
      const auto coder = codec.coder(ElementType::f32);
      wire += coder->wire_bytes(parameters[id].count);
      blocks += (parameters[id].count + coder->block() - 1) / coder->block();
    }
    return options_.plan.algorithm == Algorithm::two_shot ||
           (options_.plan.algorithm == Algorithm::automatic && !one_round_pays(wire, blocks, ranks_, options_.plan));
  }
  /// Devices have no rings and trees of ours.
  void plan_blocks(Bucket& bucket, const std::vector<Parameter>& parameters) const {
    const auto misfit = std::find_if(bucket.planned.begin(), bucket.planned.end(),
                                     [](const PlannedParameter& p) { return !fits_ring(p); });
    if (options_.plan.algorithm == Algorithm::ring && misfit != bucket.planned.end())
      throw Error(Errc::unsupported, "rank " + std::to_string(rank_) + ": seal: \"" + parameters[misfit->number].name +
                                         "\" is " + misfit->coder->spec() + " of " +
                                         std::string(to_string(misfit->type)) +
                                         ", and a ring passes on sums in fp32: it takes 16 bits and more per element, "
                                         "without rotation, and of buffers of 16 bits what is exact");
    bucket.plan = make_plan(bucket.planned, ranks_, options_.plan);
    if (options_.plan.algorithm != Algorithm::automatic || on_devices()) return;
    PlanOptions with = options_.plan;
    with.algorithm = form_by_cost(bucket.plan, bucket.planned, nodes_, with);
    if (with.algorithm != bucket.plan.algorithm) bucket.plan = make_plan(bucket.planned, ranks_, with);
  }
  bool on_devices() const { return !exact_with_factors_; }

  void plan_hierarchy(Bucket& bucket) {
    bucket.plan = make_plan(bucket.planned, ranks_, options_.plan);
    bucket.hierarchical_plan = make_hierarchical_plan(bucket.planned, nodes_, rank_, inside_, options_.plan);
    bucket.stages.resize(2);
    if (!options_.error_feedback) return;
    const HierarchicalPlan& plan = bucket.hierarchical_plan;
    bucket.stage_regions = {memory_.add(plan.across_elements), memory_.add(plan.inside_elements)};
    bucket.has_owner_residual = plan.owned != 0;
    if (bucket.has_owner_residual) bucket.owner_region = memory_.add(plan.owned);
  }

  void add(Bucket& bucket, std::size_t position, const Parameter& parameter, ParameterMemory& memory,
           bool hierarchical) {
    const Codec& codec = options_.policy.choose(parameter, options_.codec);
    const auto number = static_cast<std::uint32_t>(bucket.parameters[position]);
    if (options_.momentum) memory.momentum = memory_.add(parameter.count);
    if (const SparseSettings* sparse = codec.sparse()) {
      require_feedback(parameter, codec, sparse->without_feedback);
      require_fp32_residual(parameter, codec);
      if (options_.error_feedback) memory.residual = memory_.add(parameter.count);
      if (sparse->random && parameter.count > std::numeric_limits<std::uint32_t>::max())
        throw Error(Errc::unsupported, "randomk: \"" + parameter.name + "\" has more than 2^32 - 1 elements");
      (sparse->random ? bucket.drawn : bucket.chosen).add(position);
      (sparse->random ? bucket.planned_random : bucket.planned_sparse)
          .push_back({parameter.count, parameter.type, *sparse, number});
      if (sparse->random)
        bucket.drawn_elements.push_back(
            {sparse->chosen(parameter.count, 0), ElementType::f32, sparse->values, number, false});
      return;
    }
    const low_rank::Shape shape = low_rank::matrix_shape(parameter.shape);
    const LowRankSettings* const low_rank = codec.low_rank();
    if (low_rank != nullptr && low_rank::worth_it(shape, low_rank->least_rank())) {
      require_feedback(parameter, codec, low_rank->without_feedback);
      require_fp32_residual(parameter, codec);
      if (options_.error_feedback) memory.residual = memory_.add(parameter.count);
      bucket.matrices.add(position);
      bucket.planned_matrices.push_back({shape, parameter.type, *low_rank, number});
      return;
    }
    auto coder = (low_rank != nullptr ? Codec{} : codec).coder(parameter.type);
    const Coder& first = hierarchical ? *inside_ : *coder;  // that our gradient meets
    require_kept_in_bf16(parameter, *coder);
    require_kept_in_bf16(parameter, first);
    if (options_.error_feedback && !first.lossless(parameter.type)) memory.residual = memory_.add(parameter.count);
    memory.basis = first.residual_basis();
    memory.sums_basis = coder->residual_basis();
    const bool stochastic = coder->stochastic(options_.error_feedback);
    bucket.blocks.add(position);
    bucket.planned.push_back({parameter.count, parameter.type, std::move(coder), number, stochastic});
  }

  void add_sharded(Bucket& bucket, const Parameter& parameter, ParameterMemory& memory) {
    const Codec& codec = options_.policy.choose(parameter, options_.codec);
    const auto fail = [&](Errc code, const std::string& why) {
      return Error(code, "rank " + std::to_string(rank_) + ": seal: \"" + parameter.name + "\" is of " +
                             to_string(parameter.operation) + ": " + why);
    };
    if (codec.sparse() != nullptr || codec.low_rank() != nullptr)
      throw fail(Errc::unsupported, codec.spec() + " is for all_reduce");
    if (options_.momentum) throw fail(Errc::unsupported, "momentum correction is for all_reduce");
    const bool divided = parameter.operation != Operation::broadcast;
    if (divided && parameter.count % static_cast<std::size_t>(ranks_) != 0)
      throw fail(Errc::invalid_argument,
                 std::to_string(parameter.count) + " elements are no multiple of " + std::to_string(ranks_) + " ranks");
    const auto coder = codec.coder(parameter.type);
    require_kept_in_bf16(parameter, *coder);
    const bool stochastic = coder->stochastic(options_.error_feedback);
    const auto number = static_cast<std::uint32_t>(bucket.parameters.front());
    bucket.planned = cut_into_shards({parameter.count, parameter.type, coder, number, stochastic}, parameter.operation,
                                     ranks_, parameter.root);
    bucket.plan = make_sharded_plan(bucket.planned, parameter.operation, options_.plan);
    for (std::size_t shard = 0; shard < bucket.planned.size(); ++shard) bucket.blocks.add(0);
    if (!options_.error_feedback || coder->lossless(parameter.type)) return;
    const std::size_t own = bucket.planned[static_cast<std::size_t>(rank_)].count;
    memory.residual = memory_.add(bucket.plan.contributes() ? parameter.count : own);
    memory.basis = memory.sums_basis = coder->residual_basis();
  }

  /// What is sent whole goes into the messages of the factors.
  void plan_matrices(Bucket& bucket) const {
    if (bucket.planned_matrices.empty()) return;
    const LowRankSettings& first = bucket.planned_matrices.front().settings;
    for (const low_rank::PlannedMatrix& matrix : bucket.planned_matrices)
      if (!low_rank::go_together(first, matrix.settings))
        throw Error(Errc::invalid_argument, "rank " + std::to_string(rank_) + ": seal: " + first.spec() + " and " +
                                                matrix.settings.spec() +
                                                " in one bucket must start alike, and change ranks alike");
    BucketPart blocks;
    std::vector<PlannedParameter> planned, along;
    for (std::size_t i = 0; i < bucket.planned.size(); ++i) {
      const PlannedParameter& parameter = bucket.planned[i];
      const bool goes_along = exact_with_factors_ && parameter.coder->lossless(parameter.type);
      (goes_along ? bucket.matrices : blocks).add(bucket.blocks.positions[i]);
      (goes_along ? along : planned).push_back(parameter);
    }
    bucket.blocks = std::move(blocks);
    bucket.planned = std::move(planned);
    bucket.low_rank_plan = low_rank::make_plan(bucket.planned_matrices, std::move(along), ranks_, beside_blocks_);
  }

  void require_feedback(const Parameter& parameter, const Codec& codec, bool without_feedback) const {
    if (options_.error_feedback || without_feedback) return;
    throw Error(Errc::invalid_argument,
                "rank " + std::to_string(rank_) + ": seal: \"" + parameter.name + "\" is " + codec.spec() +
                    " and error_feedback is off: what is not sent would be lost, and training fails; ask for "
                    "\"without-feedback\" to have it all the same");
  }

  void require_fp32_residual(const Parameter& parameter, const Codec& codec) const {
    if (options_.error_feedback && options_.residual != ElementType::f32)
      throw residual_is_fp32(parameter, codec.spec());
  }
  void require_kept_in_bf16(const Parameter& parameter, const Coder& coder) const {
    if (options_.error_feedback && options_.residual == ElementType::bf16 && !coder.lossless(parameter.type) &&
        !coder.keeps_bf16())
      throw residual_is_fp32(parameter, coder.spec());
  }
  Error residual_is_fp32(const Parameter& parameter, const std::string& codec) const {
    return Error(Errc::unsupported, "rank " + std::to_string(rank_) + ": seal: \"" + parameter.name + "\" is " + codec +
                                        ", whose residuals are fp32, and not " +
                                        std::string(to_string(options_.residual)));
  }

  const SessionOptions& options_;
  int rank_;
  int ranks_;
  ErrorMemory& memory_;
  bool exact_with_factors_;
  PlanOptions beside_blocks_;  ///< of what is no block, which has no rings and trees
  Nodes nodes_;
  std::shared_ptr<const Coder> inside_;
};

/// Channels of a Session's reductions, one per bucket and kind, so that their messages never meet: of the first bucket,
/// and those of the others behind it.
struct Channels {
  static constexpr std::uint32_t kKinds = 9;

  Channels(std::uint32_t first, std::uint32_t buckets)
      : blocks(first),
        sparse(first + buckets),
        random(first + 2 * buckets),
        low_rank{first + 3 * buckets, first + 4 * buckets, first + 5 * buckets},
        hierarchy{first + 6 * buckets, first + 7 * buckets, first + 8 * buckets} {}

  std::uint32_t blocks, sparse, random;
  std::array<std::uint32_t, 3> low_rank;   ///< left factors, right factors, whole matrices
  std::array<std::uint32_t, 3> hierarchy;  ///< scattered inside nodes, across nodes, gathered inside
};

/// Plans all buckets of a Session.
template <class Once = void>  // see core_session.hpp
void plan_buckets(std::deque<Bucket>& buckets, const std::vector<Parameter>& parameters, const SessionOptions& options,
                  const Transport& transport, ErrorMemory& memory, std::vector<ParameterMemory>& of_parameters) {
  BucketPlanning planning(options, transport, memory);
  for (Bucket& bucket : buckets) planning.plan(bucket, parameters, of_parameters);
}

/// Takes the memory of a planned bucket's reductions, as far as there are any.
template <class Once = void>  // see core_session.hpp
void make_reductions(Bucket& bucket, Transport& transport, std::uint64_t fingerprint, std::uint32_t number,
                     const Channels& channels, const SessionOptions& options) {
  const float divisor = options.average ? static_cast<float>(transport.size()) : 1.0f;
  const auto identity = [&](std::uint32_t channel) { return FrameIdentity{fingerprint, channel + number, number}; };
  auto& reductions = bucket.operation.reductions;
  if (!bucket.hierarchical_plan.empty())
    reductions.push_back(std::make_unique<HierarchicalReduction>(
        transport, bucket.hierarchical_plan,
        HierarchicalReduction::Identities{identity(channels.hierarchy[0]), identity(channels.hierarchy[1]),
                                          identity(channels.hierarchy[2])},
        divisor));
  else if (bucket.plan.algorithm == Algorithm::ring && !bucket.planned.empty())
    reductions.push_back(std::make_unique<RingReduction>(
        transport, bucket.plan, bucket.planned, identity(channels.blocks), divisor, Codec{}.coder(ElementType::f32)));
  else if (bucket.plan.algorithm == Algorithm::tree && !bucket.planned.empty())
    reductions.push_back(
        std::make_unique<TreeReduction>(transport, bucket.plan, bucket.planned, identity(channels.blocks), divisor));
  else if (!bucket.planned.empty())
    reductions.push_back(
        std::make_unique<BlockReduction>(transport, bucket.plan, bucket.planned, identity(channels.blocks), divisor));
  if (!bucket.planned_sparse.empty())
    reductions.push_back(std::make_unique<SparseReduction>(transport, bucket.sparse_plan, identity(channels.sparse),
                                                           divisor, options.momentum));
  if (!bucket.planned_random.empty())
    reductions.push_back(std::make_unique<RandomReduction>(
        transport, RandomPlan{bucket.planned_random, bucket.random_plan, bucket.drawn_elements},
        identity(channels.random), divisor, options.momentum));
  if (!bucket.planned_matrices.empty())
    reductions.push_back(std::make_unique<LowRankReduction>(
        transport, bucket.low_rank_plan,
        LowRankReduction::Identities{identity(channels.low_rank[0]), identity(channels.low_rank[1]),
                                     identity(channels.low_rank[2])},
        divisor, options.seed));
}

}  // namespace tightwire
