#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/bucket.hpp>
#include <tightwire/bucket_planning.hpp>
#include <tightwire/error_memory.hpp>
#include <tightwire/policy.hpp>
#include <tightwire/saved_state.hpp>
#include <tightwire/session_options.hpp>

namespace tightwire::detail {

/// What of a Session is saved, apart from its counters.
struct SessionMemory {
  const SessionOptions& options;
  const std::vector<Parameter>& parameters;
  const std::vector<ParameterMemory>& of_parameters;
  const std::deque<Bucket>& buckets;
  const ErrorMemory& memory;
  int rank, ranks;
};

/// Calls f(parameter, first element, count, place in the owner's residual) for what a rank owns of a bucket and may
/// lose part of.
template <class F>
void for_owned(const Bucket& bucket, int rank, const F& f) {
  if (bucket.plan.algorithm != Algorithm::two_shot || bucket.sharded()) return;
  for (const Chunk& chunk : bucket.plan.chunks)
    for (const Slice& slice : chunk.shares[static_cast<std::size_t>(rank)].slices) {
      const PlannedParameter& planned = bucket.planned[slice.parameter];
      if (planned.coder->lossless(planned.type)) continue;
      const std::size_t id = bucket.parameters[bucket.blocks.positions[slice.parameter]];
      f(id, slice.begin, slice.count, slice.error_at);
    }
}

template <class Once = void>  // see core_session.hpp
std::vector<std::byte> save(const SessionMemory& from, const SavedState::Counters& counters) {
  using state::Kind;
  state::Writer writer;
  writer.put(SavedState::kMagic);
  writer.put(static_cast<std::uint32_t>(from.ranks));
  writer.put(static_cast<std::uint32_t>(from.rank));
  writer.put(static_cast<std::uint32_t>(from.memory.type()));
  writer.put(counters.steps);
  writer.put(counters.committed);
  writer.put(counters.rollbacks);
  writer.put(std::uint64_t{from.parameters.size()});
  state::Records records;
  for (std::size_t id = 0; id < from.parameters.size(); ++id) {
    writer.text(from.parameters[id].name);
    writer.put(std::uint64_t{from.parameters[id].count});
    const ParameterMemory& memory = from.of_parameters[id];
    writer.text(memory.basis);
    for (const auto& [kind, region] :
         {std::pair(Kind::sender_residual, memory.residual), {Kind::momentum, memory.momentum}})
      if (region != ParameterMemory::kNone) records.add(kind, id, 0, from.memory.committed_bytes(region));
  }
  for (std::size_t number = 0; number < from.buckets.size(); ++number) {
    const Bucket& bucket = from.buckets[number];
    if (bucket.has_owner_residual) {
      const auto owner = from.memory.committed_bytes(bucket.owner_region);
      const std::size_t element = element_bytes(from.memory.type());
      for_owned(bucket, from.rank, [&](std::size_t id, std::size_t begin, std::size_t count, std::size_t at) {
        records.add(Kind::owner_residual, id, begin, owner.subspan(at * element, count * element));
      });
    }
    records.add(Kind::sequence, number, bucket.sequence, std::span<const float>{});
    for (const auto& reduction : bucket.operation.reductions) reduction->save(records);
  }
  writer.put(records.count());
  writer.put(records.bytes());
  return writer.finish();
}

/// Takes up what was saved. Everything is checked before anything is changed.
///
/// From another number of ranks, new rank r gets the residuals and momenta of old ranks r, r + ranks, ... added up, and
/// of means times ranks / old ranks: so that what they still add to the updates stays the same. An owner's residual
/// goes to whoever owns the elements now, or where nobody does, into a contribution.
class Restoring {
 public:
  Restoring(const SessionMemory& to, std::span<const std::span<const std::byte>> states, bool own_only) : to_(to) {
    for (const auto bytes : states) states_.emplace_back(bytes, to.parameters);
    for (const SavedState& state : states_)
      for (std::size_t id = 0; id < to.parameters.size(); ++id) require_basis(id, state.bases[id]);
    if (own_only)
      require_own();
    else
      require_complete();
    for (const SavedState& state : states_)
      for (const state::Record& record : state.records) require_place(state, record);
    if (own_only) require_same_shares();
  }

  const SavedState::Counters& counters() const { return states_.front().counters; }

  /// Equal on all ranks that take up the same step.
  std::uint64_t fingerprint() const {
    state::Writer writer;
    for (const std::uint64_t value : {counters().steps, counters().committed, counters().rollbacks}) writer.put(value);
    writer.put(states_.front().ranks);
    for (const state::Record& record : states_.front().records) {
      if (!state::shared_by_ranks(record.kind)) continue;
      writer.put(record.detail);
      writer.put(record.bytes);
    }
    return std::max<std::uint64_t>(state::fingerprint(writer.bytes()), 1);
  }

  /// Of a bucket: how often it was reduced, or the one that was most.
  std::uint32_t sequence(std::size_t bucket) const {
    std::uint64_t most = 0;
    std::size_t buckets = 0;
    for (const state::Record& record : states_.front().records) {
      if (record.kind != state::Kind::sequence) continue;
      ++buckets;
      most = std::max(most, record.detail);
    }
    const state::Record* record = state::find(states_.front().records, state::Kind::sequence, bucket);
    return static_cast<std::uint32_t>(record != nullptr && buckets == to_.buckets.size() ? record->detail : most);
  }

  void apply(ErrorMemory& memory) {
    memory_ = &memory;
    for (std::size_t id = 0; id < to_.parameters.size(); ++id)
      for (const ErrorMemory::Region region : {to_.of_parameters[id].residual, to_.of_parameters[id].momentum})
        if (region != ParameterMemory::kNone) clear(region);
    for (const Bucket& bucket : to_.buckets)
      if (bucket.has_owner_residual) clear(bucket.owner_region);
    for (const SavedState& state : states_)
      for (const state::Record& record : state.records) apply(state, record);
    // Behind the others, since where nobody owns elements any more they are added to a contribution.
    for (const SavedState& state : states_)
      for (const state::Record& record : state.records)
        if (record.kind == state::Kind::owner_residual) apply_owner(record);
    const bool same_ranks = states_.front().ranks == static_cast<std::uint32_t>(to_.ranks);
    for (const Bucket& bucket : to_.buckets)
      for (const auto& reduction : bucket.operation.reductions) reduction->restore(states_.front().records, same_ranks);
  }

 private:
  static Error bad(const std::string& what) { return Error(Errc::invalid_argument, "restore: " + what); }
  void clear(ErrorMemory::Region region) const {
    memory_->change(region, [](std::span<float> values) { std::fill(values.begin(), values.end(), 0.0f); });
  }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(to_.ranks); }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(to_.rank); }

  void require_own() const {
    const SavedState& own = states_.front();
    if (own.ranks != ranks() || own.rank != rank())
      throw bad("the state is of rank " + std::to_string(own.rank) + " of " + std::to_string(own.ranks) +
                ", and this is rank " + std::to_string(rank()) + " of " + std::to_string(ranks()) +
                "; for another number of ranks give the states of all");
  }
  void require_complete() {
    if (states_.empty()) throw bad("no states");
    std::sort(states_.begin(), states_.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const SavedState& state = states_[i];
      if (state.ranks != states_.size() || state.rank != i)
        throw bad("got " + std::to_string(states_.size()) + " states, of which one is of rank " +
                  std::to_string(state.rank) + " of " + std::to_string(state.ranks) + "; every rank's is needed, once");
      if (!(state.counters == counters()))
        throw bad("rank 0 was saved after " + std::to_string(counters().steps) + " steps and rank " +
                  std::to_string(i) + " after " + std::to_string(state.counters.steps));
    }
  }

  void require_basis(std::size_t id, const std::string& saved) const {
    const std::string& here = to_.of_parameters[id].basis;
    const auto name = [](const std::string& basis) { return basis.empty() ? std::string("no rotation") : basis; };
    if (saved != here)
      throw Error(Errc::mismatch, "state: residuals of \"" + to_.parameters[id].name + "\" are under " + name(saved) +
                                      ", and in this Session under " + name(here));
  }

  /// Where a parameter is encoded in blocks by owners.
  const Bucket* owned_in(std::size_t id) const {
    for (const Bucket& bucket : to_.buckets)
      for (std::size_t i = 0; i < bucket.planned.size(); ++i)
        if (bucket.parameters[bucket.blocks.positions[i]] == id)
          return to_.options.error_feedback && !bucket.sharded() && bucket.plan.algorithm == Algorithm::two_shot &&
                         !bucket.planned[i].coder->lossless(bucket.planned[i].type)
                     ? &bucket
                     : nullptr;
    return nullptr;
  }

  /// Nothing may be lost: a residual of an element that has none any more must be zero.
  void require_place(const SavedState& state, const state::Record& record) const {
    using state::Kind;
    if (state::shared_by_ranks(record.kind)) return;
    const ParameterMemory& memory = to_.of_parameters[record.number];
    const ErrorMemory::Region region = record.kind == Kind::momentum ? memory.momentum : memory.residual;
    const std::size_t kept = region == ParameterMemory::kNone ? 0 : to_.memory.count(region);
    if (kept == (record.kind == Kind::owner_residual ? to_.parameters[record.number].count : record.elements())) return;
    for (std::size_t i = 0; i < record.elements(); ++i)
      if (record.at(i) != 0.0f)
        throw bad("rank " + std::to_string(state.rank) + " has saved a " +
                  (record.kind == Kind::momentum ? "momentum" : "residual") + " of \"" +
                  to_.parameters[record.number].name + "\", which has none in this Session and would lose it");
  }
  void require_same_shares() const {
    std::size_t saved = 0, wanted = 0;
    for (const state::Record& record : states_.front().records)
      if (record.kind == state::Kind::owner_residual) saved += record.elements();
    for (const Bucket& bucket : to_.buckets)
      if (bucket.has_owner_residual)
        for_owned(bucket, to_.rank, [&](std::size_t id, std::size_t begin, std::size_t count, std::size_t) {
          for (const state::Record& record : states_.front().records) wanted += overlap(record, id, begin, count).count;
        });
    std::size_t owned = 0;
    for (const Bucket& bucket : to_.buckets) {
      if (!bucket.has_owner_residual) continue;
      for_owned(bucket, to_.rank, [&](std::size_t, std::size_t, std::size_t count, std::size_t) { owned += count; });
    }
    if (wanted != saved || owned != saved)
      throw bad("rank " + std::to_string(rank()) + " owned other elements when it was saved (" + std::to_string(saved) +
                ", now " + std::to_string(owned) + "): buckets or codecs were others; give the states of all ranks");
  }

  struct Overlap {
    std::size_t from = 0, to = 0, count = 0;  ///< in the record, in the run
  };
  static Overlap overlap(const state::Record& record, std::size_t id, std::size_t begin, std::size_t count) {
    if (record.kind != state::Kind::owner_residual || record.number != id) return {};
    const auto first = static_cast<std::size_t>(record.detail), end = first + record.elements();
    const std::size_t from = std::max(first, begin), to = std::min(end, begin + count);
    return from < to ? Overlap{from - first, from - begin, to - from} : Overlap{};
  }

  void apply(const SavedState& state, const state::Record& record) const {
    const bool residual = record.kind == state::Kind::sender_residual;
    if ((!residual && record.kind != state::Kind::momentum) || state.rank % ranks() != rank()) return;
    const ParameterMemory& memory = to_.of_parameters[record.number];
    const ErrorMemory::Region region = residual ? memory.residual : memory.momentum;
    if (region == ParameterMemory::kNone) return;
    const float scale = to_.options.average ? static_cast<float>(to_.ranks) / static_cast<float>(state.ranks) : 1.0f;
    const bool first = state.rank == rank();
    memory_->change(region, [&](std::span<float> values) {
      if (values.size() != record.elements()) return;  // of nothing but zeros
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float x = scale == 1.0f ? record.at(i) : record.at(i) * scale;
        values[i] = first ? x : values[i] + x;
      }
    });
  }

  void apply_owner(const state::Record& record) const {
    if (const Bucket* bucket = owned_in(record.number)) {
      if (!bucket->has_owner_residual) return;
      memory_->change(bucket->owner_region, [&](std::span<float> owner) {
        for_owned(*bucket, to_.rank, [&](std::size_t id, std::size_t begin, std::size_t count, std::size_t at) {
          const Overlap both = overlap(record, id, begin, count);
          for (std::size_t i = 0; i < both.count; ++i) owner[at + both.to + i] = record.at(both.from + i);
        });
      });
      return;
    }
    const ErrorMemory::Region region = to_.of_parameters[record.number].residual;
    if (region == ParameterMemory::kNone || record.number % ranks() != rank()) return;
    const float divisor = to_.options.average ? static_cast<float>(to_.ranks) : 1.0f;
    memory_->change(region, [&](std::span<float> sender) {
      if (sender.size() != to_.parameters[record.number].count) return;
      for (std::size_t i = 0; i < record.elements(); ++i) sender[record.detail + i] += record.at(i) * divisor;
    });
  }

  SessionMemory to_;
  ErrorMemory* memory_ = nullptr;
  std::vector<SavedState> states_;
};

/// What a Session goes on from.
struct Restored {
  SavedState::Counters counters;
  std::vector<std::uint32_t> sequences;  ///< of buckets
};

/// Reads states, makes sure that every rank can take up the same step, or none does, and takes it up. Collective.
/// Throws Error(mismatch) that names the rank that cannot, or is at another step; then nothing was changed.
template <class Once = void>  // see core_session.hpp
Restored restore(Transport& transport, std::uint32_t channel, const SessionMemory& to,
                 std::span<const std::span<const std::byte>> states, bool own_only, ErrorMemory& memory) {
  const std::string where = "rank " + std::to_string(to.rank) + ": ";
  std::optional<Restoring> restoring;
  std::exception_ptr failure;
  try {
    restoring.emplace(to, states, own_only);
  } catch (const Error& error) {
    failure = std::make_exception_ptr(Error(error.code(), where + error.what()));
  }
  const std::uint64_t mine = restoring ? restoring->fingerprint() : 0;
  const auto all =
      exchange_greetings(transport, channel, {mine, 0}, to.options.timeout, "restoring a state (every rank must)");
  if (failure) std::rethrow_exception(failure);
  for (std::size_t peer = 0; peer < all.size(); ++peer)
    if (all[peer].value != mine)
      throw Error(Errc::mismatch, where + "restore: rank " + std::to_string(peer) +
                                      (all[peer].value == 0 ? " could not" : " restores the state of another step"));
  restoring->apply(memory);
  Restored restored{restoring->counters(), {}};
  for (std::size_t bucket = 0; bucket < to.buckets.size(); ++bucket)
    restored.sequences.push_back(restoring->sequence(bucket));
  return restored;
}

}  // namespace tightwire::detail
