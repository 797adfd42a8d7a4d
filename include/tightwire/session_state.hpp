#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/bucket.hpp>
#include <tightwire/bucket_planning.hpp>
#include <tightwire/detail/rounded_product.hpp>
#include <tightwire/error_memory.hpp>
#include <tightwire/policy.hpp>
#include <tightwire/residual_runs.hpp>
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

/// What of a node's is the same in all of them is told from its copies.
inline state::Kind saved_as(const Bucket& bucket, state::Kind kind, int rank) {
  const bool copy = kind == state::Kind::result_residual && bucket.hierarchical_plan.nodes.place_of(rank).first != 0;
  return copy ? state::Kind::result_residual_copy : kind;
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
  writer.put(counters.run);
  writer.put(std::uint64_t{from.parameters.size()});
  state::Records records;
  for (std::size_t id = 0; id < from.parameters.size(); ++id) {
    writer.text(from.parameters[id].name);
    writer.put(std::uint64_t{from.parameters[id].count});
    const ParameterMemory& memory = from.of_parameters[id];
    writer.text(memory.basis == memory.sums_basis ? memory.basis : memory.basis + "|" + memory.sums_basis);
    for (const auto& [kind, region] :
         {std::pair(Kind::sender_residual, memory.residual), {Kind::momentum, memory.momentum}})
      if (region != ParameterMemory::kNone) records.add(kind, id, 0, from.memory.committed_bytes(region));
  }
  for (std::size_t number = 0; number < from.buckets.size(); ++number) {
    const Bucket& bucket = from.buckets[number];
    const std::size_t element = element_bytes(from.memory.type());
    for (const Kind kind : kRunKinds)
      for_runs(bucket, kind, from.rank, [&](std::size_t id, std::size_t begin, std::size_t count, std::size_t at) {
        records.add(saved_as(bucket, kind, from.rank), id, begin,
                    from.memory.committed_bytes(*region_of(bucket, kind)).subspan(at * element, count * element));
      });
    records.add(Kind::sequence, number, bucket.sequence, std::span(&bucket.kept_use, 1));
    for (const auto& reduction : bucket.operation.reductions) reduction->save(records);
  }
  writer.put(records.count());
  writer.put(records.bytes());
  return writer.finish();
}

/// How often a bucket was reduced, see Bucket.
struct Reductions {
  std::uint32_t sequence = 0, use = 0;

  /// States that say nothing of steps kept drew by all reductions.
  static Reductions of(const state::Record& record) {
    Reductions made{static_cast<std::uint32_t>(record.detail), static_cast<std::uint32_t>(record.detail)};
    if (record.bytes.size() == sizeof made.use) std::memcpy(&made.use, record.bytes.data(), sizeof made.use);
    return made;
  }
  void apply(Bucket& bucket) const {
    bucket.sequence = sequence;
    bucket.use = bucket.kept_use = use;
  }
};

/// Takes up what was saved. Everything is checked before anything is changed.
///
/// From another number of ranks, new rank r gets the residuals and momenta of old ranks r, r + ranks, ... added up, and
/// of means times ranks / old ranks: so that what they still add to the updates stays the same. What a node's sum lost
/// is a contribution's, of the rank that kept it. Residuals of sums go to whoever has such of the elements now, or
/// where nobody does, into a contribution.
class Restoring {
 public:
  Restoring(const SessionMemory& to, std::span<const std::span<const std::byte>> states, bool own_only)
      : to_(to), own_only_(own_only) {
    for (const auto bytes : states) states_.emplace_back(bytes, to.parameters);
    for (std::size_t id = 0; id < to.parameters.size(); ++id)
      kept_.push_back(kept_residuals(to.buckets, id, to.of_parameters[id], to.options.error_feedback));
    if (own_only)
      require_own();
    else
      require_complete();
    for (const SavedState& state : states_)
      for (const state::Record& record : state.records) require_place(state, record);
    if (own_only)
      for (const Kind kind : kRunKinds) require_same_runs(kind);
  }

  const SavedState::Counters& counters() const { return states_.front().counters; }

  /// Equal on all ranks that take up the same step of the same run.
  std::uint64_t fingerprint() const { return std::max<std::uint64_t>(fingerprint_of(states_.front()), 1); }

  /// How often a bucket was reduced, or the one that was most.
  Reductions reductions(std::size_t bucket) const {
    Reductions most;
    std::size_t buckets = 0;
    for (const state::Record& record : states_.front().records) {
      if (record.kind != Kind::sequence) continue;
      ++buckets;
      const Reductions its = Reductions::of(record);
      most = {std::max(most.sequence, its.sequence), std::max(most.use, its.use)};
    }
    const state::Record* record = state::find(states_.front().records, Kind::sequence, bucket);
    return record != nullptr && buckets == to_.buckets.size() ? Reductions::of(*record) : most;
  }

  void apply(ErrorMemory& memory) {
    memory_ = &memory;
    for (std::size_t id = 0; id < to_.parameters.size(); ++id)
      for (const ErrorMemory::Region region : {to_.of_parameters[id].residual, to_.of_parameters[id].momentum})
        if (region != ParameterMemory::kNone) clear(region);
    for (const Bucket& bucket : to_.buckets)
      for (const Kind kind : kRunKinds)
        if (const auto region = region_of(bucket, kind)) clear(*region);
    for (std::size_t id = 0; id < to_.parameters.size(); ++id)
      if (has_momentum_of_mean(id)) apply_momentum_of_mean(id);
    for (const SavedState& state : states_)
      for (const state::Record& record : state.records) apply(state, record);
    // Behind the others, since they may be added to what those have set.
    for (const SavedState& state : states_)
      for (const state::Record& record : state.records)
        if (of_sum(record.kind)) apply_sum(record);
    const bool same_ranks = states_.front().ranks == static_cast<std::uint32_t>(to_.ranks);
    for (const Bucket& bucket : to_.buckets)
      for (const auto& reduction : bucket.operation.reductions) reduction->restore(states_.front().records, same_ranks);
  }

 private:
  using Kind = state::Kind;

  static std::uint64_t fingerprint_of(const SavedState& state) {
    const SavedState::Counters& counters = state.counters;
    state::Writer writer;
    for (const std::uint64_t value : {counters.steps, counters.committed, counters.rollbacks, counters.run})
      writer.put(value);
    writer.put(state.ranks);
    for (const state::Record& record : state.records) {
      if (!state::shared_by_ranks(record.kind)) continue;
      writer.put(static_cast<std::uint32_t>(record.kind));
      writer.put(record.number);
      writer.put(record.detail);
      writer.put(record.bytes);
    }
    return state::fingerprint(writer.bytes());
  }

  static Error bad(const std::string& what) { return Error(Errc::invalid_argument, "restore: " + what); }
  /// A negative zero, to which anything added is itself, bit for bit.
  void clear(ErrorMemory::Region region) const {
    memory_->change(region, [](std::span<float> values) { std::fill(values.begin(), values.end(), -0.0f); });
  }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(to_.ranks); }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(to_.rank); }
  static bool is_result(Kind kind) { return kind == Kind::result_residual || kind == Kind::result_residual_copy; }
  /// Once per element in the update, whatever the ranks.
  static bool of_sum(Kind kind) { return kind == Kind::owner_residual || is_result(kind); }

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
      if (!state.counters.same_step(counters()))
        throw bad("rank 0 was saved after " + std::to_string(counters().steps) + " steps and rank " +
                  std::to_string(i) + " after " + std::to_string(state.counters.steps));
      if (state.counters.run != counters().run)
        throw bad("rank 0 and rank " + std::to_string(i) + " were saved by different runs");
      if (fingerprint_of(state) != fingerprint_of(states_.front()))
        throw bad("rank 0 and rank " + std::to_string(i) +
                  " have saved other factors, ranges or numbers of reductions, " +
                  "which all ranks of a run have alike");
    }
  }

  /// What a residual is to become. Nothing where no codec of the parameter loses any more.
  std::optional<Kind> destination(Kind kind, std::size_t id) const {
    const KeptResiduals& kept = kept_[id];
    const auto first_of = [](std::initializer_list<std::pair<bool, Kind>> places) {
      for (const auto& [there, place] : places)
        if (there) return std::optional(place);
      return std::optional<Kind>{};
    };
    const std::pair sender{kept.sender, Kind::sender_residual}, node{kept.node, Kind::node_residual};
    const std::pair owner{kept.owner, Kind::owner_residual}, result{kept.result, Kind::result_residual};
    if (kind == Kind::sender_residual) return first_of({sender, node});
    if (kind == Kind::node_residual) return first_of({node, sender});
    return is_result(kind) ? first_of({result, owner, sender}) : first_of({owner, result, sender});
  }
  /// Residuals of contributions and of results are of the first codec, those between of the one across.
  static std::string basis_of(Kind kind, std::string first, std::string sums) {
    return kind == Kind::sender_residual || is_result(kind) ? std::move(first) : std::move(sums);
  }
  void require_basis(const SavedState& state, const state::Record& record, Kind becomes) const {
    const std::string& both = state.bases[record.number];
    const std::size_t bar = both.find('|');
    const std::string saved =
        basis_of(record.kind, both.substr(0, bar), bar == std::string::npos ? both : both.substr(bar + 1));
    const ParameterMemory& memory = to_.of_parameters[record.number];
    const std::string here = basis_of(becomes, memory.basis, memory.sums_basis);
    const auto name = [](const std::string& basis) { return basis.empty() ? "no rotation" : basis; };
    if (saved != here)
      throw Error(Errc::mismatch, "state: residuals of \"" + to_.parameters[record.number].name + "\" are under " +
                                      name(saved) + ", and in this Session under " + name(here));
  }

  /// Nothing may be lost: a residual of an element that has none any more must be zero.
  void require_place(const SavedState& state, const state::Record& record) const {
    if (state::shared_by_ranks(record.kind)) return;
    bool zero = true;
    for (std::size_t i = 0; i < record.elements(); ++i) zero = zero && record.at(i) == 0.0f;
    if (zero) return;
    const std::string saved = "rank " + std::to_string(state.rank) + " has saved a " +
                              (record.kind == Kind::momentum ? "momentum" : "residual") + " of \"" +
                              to_.parameters[record.number].name + "\", which ";
    const auto becomes = record.kind == Kind::momentum ? Kind::momentum : destination(record.kind, record.number);
    const ParameterMemory& memory = to_.of_parameters[record.number];
    const ErrorMemory::Region region = becomes == Kind::momentum          ? memory.momentum
                                       : becomes == Kind::sender_residual ? memory.residual
                                                                          : ParameterMemory::kNone;
    const bool whole = becomes == Kind::momentum || becomes == Kind::sender_residual;
    const std::size_t kept = region == ParameterMemory::kNone ? 0 : to_.memory.count(region);
    const std::size_t needed = state::of_run(record.kind) ? to_.parameters[record.number].count : record.elements();
    if (!becomes || (whole && kept != needed)) throw bad(saved + "has none in this Session and would lose it");
    if (record.kind == Kind::momentum) return;
    require_basis(state, record, *becomes);
    const bool same = becomes == record.kind || (is_result(*becomes) && is_result(record.kind));
    if (own_only_ && !same) throw bad(saved + "is kept elsewhere in this Session; give the states of all ranks");
  }
  void require_same_runs(Kind kind) const {
    std::size_t saved = 0, common = 0, runs = 0;
    const auto is_of_kind = [&](const state::Record& record) {
      return record.kind == kind || (is_result(kind) && is_result(record.kind));
    };
    for (const state::Record& record : states_.front().records)
      if (is_of_kind(record)) saved += record.elements();
    for (const Bucket& bucket : to_.buckets)
      for_runs(bucket, kind, to_.rank, [&](std::size_t id, std::size_t begin, std::size_t count, std::size_t) {
        runs += count;
        for (const state::Record& record : states_.front().records)
          if (is_of_kind(record)) common += overlap(record, id, begin, count).count;
      });
    if (common != saved || runs != saved)
      throw bad("rank " + std::to_string(rank()) + " owned other elements when it was saved (" + std::to_string(saved) +
                ", now " + std::to_string(runs) + "): buckets, codecs or nodes were others; give the states of all " +
                "ranks");
  }

  struct Overlap {
    std::size_t from = 0, to = 0, count = 0;  ///< in the record, in the run
  };
  /// Of a record of a parameter's elements from `detail` on; a whole one has them all.
  static Overlap overlap(const state::Record& record, std::size_t id, std::size_t begin, std::size_t count) {
    if (record.number != id) return {};
    const std::size_t first = state::of_run(record.kind) ? static_cast<std::size_t>(record.detail) : 0;
    const std::size_t end = first + record.elements();
    const std::size_t from = std::max(first, begin), to = std::min(end, begin + count);
    return from < to ? Overlap{from - first, from - begin, to - from} : Overlap{};
  }
  /// Calls f(residual, saved value) for the elements of a record of which this rank has a residual of that kind.
  template <class F>
  void for_common(const state::Record& record, Kind kind, const F& f) const {
    const Bucket& bucket = *kept_[record.number].bucket;
    const auto region = region_of(bucket, kind);
    if (!region) return;
    for_runs(bucket, kind, to_.rank, [&](std::size_t id, std::size_t begin, std::size_t count, std::size_t at) {
      const Overlap both = overlap(record, id, begin, count);
      memory_->change(*region, at + both.to, both.count, [&](std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) f(values[i], record.at(both.from + i));
      });
    });
  }

  void apply(const SavedState& state, const state::Record& record) const {
    if (state::shared_by_ranks(record.kind)) return;
    if (record.kind == Kind::momentum && has_momentum_of_mean(record.number)) return;
    const std::optional<Kind> becomes =
        record.kind == Kind::momentum ? Kind::momentum : destination(record.kind, record.number);
    if (!becomes) return;
    if (is_result(record.kind) && is_result(*becomes))
      for_common(record, *becomes, [](float& residual, float saved) { residual = saved; });
    if (of_sum(record.kind)) return;
    const float scale = to_.options.average ? static_cast<float>(to_.ranks) / static_cast<float>(state.ranks) : 1.0f;
    const auto heir = static_cast<int>(state.rank % ranks());
    if (*becomes == Kind::node_residual) {
      const Nodes& nodes = kept_[record.number].bucket->hierarchical_plan.nodes;
      if (nodes.place_of(heir).first == nodes.place_of(to_.rank).first)
        for_common(record, *becomes, [&](float& residual, float saved) { residual += rounded_product(saved, scale); });
      return;
    }
    if (heir != to_.rank) return;
    const ParameterMemory& memory = to_.of_parameters[record.number];
    add(record, *becomes == Kind::momentum ? memory.momentum : memory.residual, scale);
  }

  /// Of what all ranks hold alike after a reduction, and so must the momentum be; what is sent in part has one per
  /// rank.
  bool has_momentum_of_mean(std::size_t id) const {
    if (to_.of_parameters[id].momentum == ParameterMemory::kNone) return false;
    for (const Bucket& bucket : to_.buckets)
      for (const BucketPart* part : {&bucket.chosen, &bucket.drawn})
        for (const std::size_t position : part->positions)
          if (bucket.parameters[position] == id) return false;
    return true;
  }
  /// The one that all had, or where each had its own, what these come to in the mean.
  void apply_momentum_of_mean(std::size_t id) const {
    std::vector<state::Record> saved;
    for (const SavedState& state : states_)
      for (const state::Record& record : state.records)
        if (record.kind == Kind::momentum && record.number == id) saved.push_back(record);
    const bool alike = std::all_of(saved.begin(), saved.end(), [&](const state::Record& record) {
      return std::ranges::equal(record.bytes, saved.front().bytes);
    });
    if (alike) saved.resize(std::min<std::size_t>(saved.size(), 1));
    const float scale = alike || !to_.options.average ? 1.0f : 1.0f / static_cast<float>(states_.front().ranks);
    for (const state::Record& record : saved) add(record, to_.of_parameters[id].momentum, scale);
  }

  void apply_sum(const state::Record& record) const {
    const std::optional<Kind> becomes = destination(record.kind, record.number);
    if (!becomes || (is_result(record.kind) && is_result(*becomes))) return;
    if (record.kind == Kind::result_residual_copy) return;  // the first node's has it
    if (*becomes != Kind::sender_residual)
      for_common(record, *becomes, [](float& residual, float saved) { residual += saved; });
    else if (record.number % ranks() == rank())
      add(record, to_.of_parameters[record.number].residual, to_.options.average ? static_cast<float>(to_.ranks) : 1);
  }
  void add(const state::Record& record, ErrorMemory::Region region, float scale) const {
    if (region == ParameterMemory::kNone) return;
    const std::size_t first = state::of_run(record.kind) ? static_cast<std::size_t>(record.detail) : 0;
    if (memory_->count(region) < first + record.elements()) return;  // of nothing but zeros
    memory_->change(region, first, record.elements(), [&](std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += rounded_product(record.at(i), scale);
    });
  }

  SessionMemory to_;
  bool own_only_;
  ErrorMemory* memory_ = nullptr;
  std::vector<SavedState> states_;
  std::vector<KeptResiduals> kept_;  ///< by parameter
};

/// What a Session goes on from.
struct Restored {
  SavedState::Counters counters;
  std::vector<Reductions> reductions;  ///< of buckets
};

/// Reads states, makes sure that every rank can take up the same step, or none does, and takes it up. Collective.
/// Throws Error(mismatch) that names the rank that cannot, or is at another step; then nothing was changed. Memory that
/// gives out once every rank goes on closes the transport.
template <class Once = void>  // see core_session.hpp
Restored restore(Transport& transport, std::uint32_t channel, const SessionMemory& to,
                 std::span<const std::span<const std::byte>> states, bool own_only, ErrorMemory& memory) {
  const std::string where = "rank " + std::to_string(to.rank) + ": ";
  std::optional<Restoring> restoring;
  Restored restored;
  std::uint64_t mine = 0;
  std::exception_ptr failure;
  try {
    restoring.emplace(to, states, own_only);
    restored.counters = restoring->counters();
    for (std::size_t bucket = 0; bucket < to.buckets.size(); ++bucket)
      restored.reductions.push_back(restoring->reductions(bucket));
    mine = restoring->fingerprint();
  } catch (const Error& error) {
    failure = std::make_exception_ptr(Error(error.code(), where + error.what()));
  } catch (const std::exception&) {  // for want of memory, most likely
    failure = std::current_exception();
  }
  const auto all =
      exchange_greetings(transport, channel, {mine, 0}, to.options.timeout, "restoring a state (every rank must)");
  if (failure) std::rethrow_exception(failure);
  for (std::size_t peer = 0; peer < all.size(); ++peer)
    if (all[peer].value != mine)
      throw Error(Errc::mismatch,
                  where + "restore: rank " + std::to_string(peer) +
                      (all[peer].value == 0 ? " could not" : " restores the state of another step, or of another run"));
  try {
    restoring->apply(memory);
  } catch (const std::exception& error) {
    transport.abort(error.what());
    throw;
  }
  return restored;
}

}  // namespace tightwire::detail
