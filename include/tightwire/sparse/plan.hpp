#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tightwire/element.hpp>
#include <tightwire/error.hpp>
#include <tightwire/plan.hpp>
#include <tightwire/sparse/section.hpp>
#include <tightwire/sparse/settings.hpp>
#include <tightwire/state.hpp>

namespace tightwire::sparse {

/// A parameter of a bucket of which only some elements are sent.
struct PlannedSparse {
  std::size_t count;
  ElementType type;
  SparseSettings settings;
  std::uint32_t number = 0;  ///< among all parameters of the Session
};

/// Parameters whose elements are chosen from together.
struct Group {
  std::vector<std::size_t> parameters;
  std::size_t elements = 0;
};

/// A run of elements of one parameter.
struct Piece {
  std::size_t parameter;
  std::size_t begin;
  std::size_t count;
};

/// All sparse parameters of a bucket, as one line of elements behind each other. Depends only on its arguments.
struct Plan {
  Algorithm algorithm = Algorithm::two_shot;
  int ranks = 1;
  std::vector<PlannedSparse> parameters;
  std::vector<std::size_t> starts;  ///< in the line, and its end
  std::vector<Group> groups;
  std::vector<std::size_t> group_of;          ///< by parameter
  std::vector<std::uint32_t> place_in_group;  ///< of a parameter's first element

  std::size_t elements() const { return starts.back(); }

  /// The pieces of the line's [begin, end), in order.
  void pieces(std::size_t begin, std::size_t end, std::vector<Piece>& pieces) const {
    pieces.clear();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const std::size_t from = std::max(begin, starts[p]), to = std::min(end, starts[p + 1]);
      if (from < to) pieces.push_back({p, from - starts[p], to - from});
    }
  }
};

/// About what so many elements of a parameter take on the wire after so many committed steps: two bytes for an index.
inline std::size_t expected_bytes(const PlannedSparse& parameter, std::size_t count, std::uint64_t steps) {
  const std::size_t chosen = parameter.settings.chosen(count, steps);
  const std::size_t coded = kSectionHead + parameter.settings.values->wire_bytes(chosen) + 2 * chosen;
  return std::min(coded, largest_section(*parameter.settings.values, count));
}

/// Throws Error(unsupported) for 2^32 elements or more to choose from together.
inline Plan make_plan(std::vector<PlannedSparse> parameters, int ranks, const PlanOptions& options) {
  Plan plan;
  plan.ranks = ranks;
  plan.parameters = std::move(parameters);
  plan.starts = {0};
  std::size_t expected = 0;
  for (std::size_t p = 0; p < plan.parameters.size(); ++p) {
    const PlannedSparse& parameter = plan.parameters[p];
    plan.starts.push_back(plan.starts.back() + parameter.count);
    expected += expected_bytes(parameter, parameter.count, parameter.settings.warm_up_steps);
    std::size_t group = plan.groups.size();
    if (parameter.settings.per_bucket)
      for (std::size_t other = 0; other < p; ++other)
        if (plan.parameters[other].settings.spec() == parameter.settings.spec()) group = plan.group_of[other];
    if (group == plan.groups.size()) plan.groups.emplace_back();
    plan.group_of.push_back(group);
    if (plan.groups[group].elements + parameter.count > std::numeric_limits<std::uint32_t>::max())
      throw Error(Errc::unsupported, "topk: more than 2^32 - 1 elements to choose from together");
    plan.place_in_group.push_back(static_cast<std::uint32_t>(plan.groups[group].elements));
    plan.groups[group].parameters.push_back(p);
    plan.groups[group].elements += parameter.count;
  }
  plan.algorithm = options.algorithm;
  // Between two ranks the union costs as many bytes, in half the rounds.
  if (plan.algorithm == Algorithm::automatic)
    plan.algorithm = ranks <= 2 || one_round_pays(expected, plan.starts.back(), ranks, options) ? Algorithm::one_shot
                                                                                                : Algorithm::two_shot;
  return plan;
}

/// Which rank owns which run of a line of elements. Runs are as long as each other at first; where the entries of the
/// sums turn out to gather in few of them, they are cut anew so that every rank gets as many. Ranks that count the same
/// entries cut alike.
class Ranges {
 public:
  Ranges(std::size_t elements, std::size_t ranks) : elements_(elements) {
    while (elements >> shift_ > kMostBins) ++shift_;
    bins_.resize((elements >> shift_) + 1);
    for (std::size_t r = 0; r <= ranks; ++r) cuts_.push_back(elements / ranks * r + elements % ranks * r / ranks);
    committed_ = cuts_;
  }

  std::size_t begin(std::size_t rank) const { return cuts_[rank]; }
  std::size_t end(std::size_t rank) const { return cuts_[rank + 1]; }

  /// An entry of a sum.
  void count(std::size_t place) { ++bins_[place >> shift_]; }

  /// Cuts anew where a rank has half as many entries again as its part. Returns whether it did.
  bool rebalance() {
    const std::size_t ranks = cuts_.size() - 1;
    std::uint64_t total = 0, most = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      std::uint64_t mine = 0;
      // A bin that two ranks share counts for the first.
      for (std::size_t bin = first_bin(begin(r)); bin < first_bin(end(r)); ++bin) mine += bins_[bin];
      total += mine;
      most = std::max(most, mine);
    }
    const bool uneven = most * ranks * 2 > total * 3 + kFew * ranks;
    if (uneven) {
      std::uint64_t seen = 0;
      std::size_t r = 1;
      for (std::size_t bin = 0; bin < bins_.size() && r < ranks; ++bin) {
        seen += bins_[bin];
        for (; r < ranks && seen * ranks >= total * r; ++r) cuts_[r] = std::min((bin + 1) << shift_, elements_);
      }
    }
    std::fill(bins_.begin(), bins_.end(), 0u);
    return uneven;
  }

  /// Keeps, or undoes, what `rebalance` did since the last call. Returns whether ranges changed by that.
  bool end_step(bool keep) {
    if (keep) committed_ = cuts_;
    const bool changes = cuts_ != committed_;
    if (changes) cuts_ = committed_;
    return changes;
  }

  /// Takes up what was committed elsewhere, if it divides as many elements among as many ranks. Returns whether it did.
  bool restore(const std::vector<std::size_t>& cuts) {
    if (cuts.size() != cuts_.size() || cuts.front() != 0 || cuts.back() != elements_ ||
        !std::is_sorted(cuts.begin(), cuts.end()))
      return false;
    cuts_ = committed_ = cuts;
    return true;
  }
  /// The same of a saved state's record of a bucket.
  void save(state::Records& records, std::uint32_t bucket) const {
    records.add(state::Kind::ranges, bucket, 0, std::span(committed_));
  }
  bool restore(std::span<const state::Record> records, std::uint32_t bucket) {
    const state::Record* record = state::find(records, state::Kind::ranges, bucket);
    if (record == nullptr) return false;
    std::vector<std::size_t> cuts(record->bytes.size() / sizeof(std::size_t));
    std::memcpy(cuts.data(), record->bytes.data(), cuts.size() * sizeof(std::size_t));
    return !cuts.empty() && restore(cuts);
  }

 private:
  static constexpr std::size_t kMostBins = std::size_t{1} << 14;
  static constexpr std::uint64_t kFew = 64;

  std::size_t first_bin(std::size_t place) const { return (place + (std::size_t{1} << shift_) - 1) >> shift_; }

  std::size_t elements_;
  int shift_ = 0;
  std::vector<std::uint32_t> bins_;
  std::vector<std::size_t> cuts_, committed_;
};

}  // namespace tightwire::sparse
