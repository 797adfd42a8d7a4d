#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tightwire/bucket.hpp>
#include <tightwire/cost_model.hpp>

namespace tightwire {

namespace detail {

/// Bytes that an entry of a section takes for its index, where entries are spread evenly: 64 gaps share the width of
/// the longest, and the longest of 64 is about (ln 64 + 0.58) times the mean.
inline double index_bytes(double density) {
  const double longest = (std::log(64.0) + 0.5772) / density;
  const double gaps = static_cast<double>(std::bit_width(static_cast<std::uint64_t>(longest))) / 8 + 1.0 / 64;
  return std::min(gaps, 1 / (8 * density));
}

/// Adds what the busiest rank of a ring does, and what its node sends across. Ranks are numbered node by node.
inline void add_ring(Stage& stage, const BucketPlan& plan, std::span<const PlannedParameter> parameters, int per_node) {
  const bool ends = plan.ranks == 2, leaves = plan.ranks > per_node, between = plan.ranks > 2 * per_node;
  for (const Chunk& chunk : plan.chunks) {
    const Share& all = chunk.shares.back();
    const Sent up{1, static_cast<double>(BucketPlan::partial_frame_bytes(chunk))};
    const Sent down{1, static_cast<double>(all.frame_bytes())};
    // Of a node's ranks the last sends up to the next node, and the first down to the one before.
    if (leaves) stage.across += up;
    if (between) stage.across += down;
    if (!leaves) stage.inside += up;
    if (!ends && per_node > 1) stage.inside += down;
    for (const Slice& slice : all.slices) {
      CodecWork& work = stage.work_of(parameters[slice.parameter].coder->spec());
      const double bytes = 4.0 * static_cast<double>(slice.count);
      work.encoded += bytes;
      work.combined += bytes;
      work.decoded += bytes;
    }
  }
  const auto chunks = static_cast<double>(std::max<std::size_t>(plan.chunks.size(), 1));
  stage.alone = true;
  stage.rounds = std::max(stage.rounds, 2 * (plan.ranks - 1));
  stage.fill = 2 * (plan.ranks - 2) / chunks;
  stage.chunks += static_cast<double>(plan.chunks.size());
  stage.windows = std::max(stage.windows, chunks / kChunksUnderWay);
}

/// Adds what a rank does with the shares of a plan. Ranks are numbered node by node, `per_node` on each.
inline void add_blocks(Stage& stage, const BucketPlan& plan, std::span<const PlannedParameter> parameters, int rank,
                       int per_node) {
  if (plan.algorithm == Algorithm::ring) {
    add_ring(stage, plan, parameters, per_node);
    return;
  }
  const double inside = std::min(per_node, plan.ranks) - 1, across = plan.ranks - 1 - inside;
  const auto send = [&](double to_inside, double to_across, std::size_t bytes) {
    stage.inside += {to_inside, to_inside * static_cast<double>(bytes)};
    stage.across += {to_across, to_across * static_cast<double>(bytes)};
  };
  const bool one_shot = plan.everyone_sums() && plan.operation == Operation::all_reduce;
  for (const Chunk& chunk : plan.chunks)
    for (std::size_t owner = 0; owner < chunk.shares.size(); ++owner) {
      const Share& share = chunk.shares[owner];
      if (share.payload_bytes == 0) continue;
      const bool own = one_shot || owner == static_cast<std::size_t>(rank);
      const bool near = static_cast<int>(owner) / per_node == rank / per_node;
      if (own)
        send(inside, across, plan.result_bytes(share));
      else if (plan.contributes())
        send(near ? 1 : 0, near ? 0 : 1, share.frame_bytes());
      for (const Slice& slice : share.slices) {
        CodecWork& work = stage.work_of(parameters[slice.parameter].coder->spec());
        const double bytes = 4.0 * static_cast<double>(slice.count);
        if (!plan.passes_on && (one_shot || (own != plan.contributes()))) work.encoded += bytes;
        if (own && plan.contributes()) {
          // Of one_shot all contributions come encoded, ours too, and the sum is not.
          const double in_sums = one_shot ? 0 : plan.operation == Operation::all_reduce ? 2 : 1;
          work.combined += bytes * (one_shot ? plan.ranks : plan.ranks - 1);
          work.encoded += in_sums * bytes;
          work.encoded_in_sums += in_sums * bytes;
        }
        // What we gathered of ourselves is what its bytes say, where they say anything else.
        const PlannedParameter& parameter = parameters[slice.parameter];
        const bool in_place = own && (plan.passes_on || parameter.coder->lossless(parameter.type));
        if ((!plan.contributes() && !in_place) || (!own && plan.operation == Operation::all_reduce))
          work.decoded += bytes;
      }
    }
  stage.rounds = std::max(stage.rounds, one_shot || !plan.contributes() ? 1 : 2);
  if (plan.algorithm == Algorithm::tree) {
    // As many bytes in fewer messages.
    const int rounds = std::bit_width(static_cast<unsigned>(plan.ranks - 1));
    const double kept = rounds / std::max(inside + across, 1.0);
    stage.inside.messages *= kept;
    stage.across.messages *= kept;
    stage.rounds = std::max(stage.rounds, rounds);
  }
  const std::size_t chunks = plan.chunks.size();
  stage.chunks += static_cast<double>(chunks);
  const std::size_t windows = (chunks + kChunksUnderWay - 1) / kChunksUnderWay;
  stage.windows = std::max(stage.windows, static_cast<double>(windows));
}

/// Top-k: what is to be expected, since what is chosen depends on the gradients.
inline void add_sparse(Stage& stage, const sparse::Plan& plan, int per_node) {
  const double inside = std::min(per_node, plan.ranks) - 1, across = plan.ranks - 1 - inside;
  const double peers = inside + across;
  double contribution = 0, result = 0;  // bytes of all entries
  for (const sparse::PlannedSparse& p : plan.parameters) {
    const auto chosen = static_cast<double>(p.settings.chosen(p.count, p.settings.warm_up_steps));
    const double density = chosen / static_cast<double>(std::max<std::size_t>(p.count, 1));
    const double values = static_cast<double>(p.settings.values->wire_bytes(1 << 16)) / (1 << 16);
    const double everyones = p.settings.reselect ? density : 1 - std::pow(1 - density, plan.ranks);
    contribution += chosen * (values + index_bytes(density));
    result += everyones * static_cast<double>(p.count) * (values + index_bytes(everyones));
    CodecWork& work = stage.work_of(p.settings.spec());
    work.encoded += 4.0 * static_cast<double>(p.count);
  }
  const bool two_shot = plan.algorithm == Algorithm::two_shot;
  constexpr double kHeads = 2 * sizeof(FrameHeader) + sparse::kSectionHead;  // with the announcement
  const double ranks = plan.ranks;
  const double per_peer = two_shot ? (contribution + result) / ranks + 2 * kHeads : contribution + kHeads;
  const double messages = two_shot ? 4 : 2;
  stage.inside += {messages * inside, inside * per_peer};
  stage.across += {messages * across, across * per_peer};
  if (peers > 0) stage.rounds = std::max(stage.rounds, two_shot ? 4 : 2);
  stage.chunks += 1;
}

}  // namespace detail

/// What a rank does for a planned bucket: the messages of the plan itself, and the work they ask of codecs. Of top-k
/// what is to be expected. Ranks are numbered node by node. Cost: linear in slices and ranks.
inline BucketLoad load_of(const Bucket& bucket, int rank, int per_node) {
  BucketLoad load;
  double bytes = 0;
  const auto stage = [&]() -> Stage& {
    load.emplace_back().chunks = 0;
    load.back().bucket_bytes = bytes;
    return load.back();
  };
  if (const HierarchicalPlan& plan = bucket.hierarchical_plan; !plan.empty()) {
    const auto [node, place] = plan.nodes.place_of(rank);
    const int local = plan.scatter.ranks;
    bytes = static_cast<double>(bucket.plan.element_bytes);
    // Chunks overlap over all three stages, and each goes through them in turn.
    Stage& whole = stage();
    detail::add_blocks(whole, plan.scatter, plan.inside, static_cast<int>(place), local);
    for (const Rail& rail : plan.rails) detail::add_blocks(whole, rail.sum, rail.across, static_cast<int>(node), 1);
    detail::add_blocks(whole, plan.gather, plan.back, static_cast<int>(place), local);
    whole.rounds = 5;
    whole.chunks = static_cast<double>(plan.rails.front().sum.chunks.size());
    return load;
  }
  for (const PlannedParameter& p : bucket.planned) bytes += 4.0 * static_cast<double>(p.count);
  for (const auto& p : bucket.planned_sparse) bytes += 4.0 * static_cast<double>(p.count);
  for (const auto& p : bucket.planned_random) bytes += 4.0 * static_cast<double>(p.count);
  for (const auto& p : bucket.planned_matrices) bytes += 4.0 * static_cast<double>(p.elements());
  Stage& first = stage();
  if (!bucket.planned.empty()) detail::add_blocks(first, bucket.plan, bucket.planned, rank, per_node);
  if (!bucket.planned_sparse.empty()) detail::add_sparse(first, bucket.sparse_plan, per_node);
  if (!bucket.planned_random.empty()) {
    detail::add_blocks(first, bucket.random_plan, bucket.drawn_elements, rank, per_node);
    for (const auto& p : bucket.planned_random)
      first.work_of(p.settings.spec()).encoded += 4.0 * static_cast<double>(p.count);
  }
  if (!bucket.planned_matrices.empty()) {
    const low_rank::Form& form = bucket.low_rank_plan.forms.back();
    detail::add_blocks(first, form.factors[0], form.parameters[0], rank, per_node);
    for (const auto& p : bucket.planned_matrices)
      first.work_of(p.settings.spec()).encoded += 4.0 * static_cast<double>(p.elements());
    if (bucket.low_rank_plan.both_factors)
      detail::add_blocks(stage(), form.factors[1], form.parameters[1], rank, per_node);
  }
  return load;
}

}  // namespace tightwire
