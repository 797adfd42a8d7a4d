#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/bucket.hpp>
#include <tightwire/policy.hpp>

namespace tightwire {

using ParameterId = std::size_t;
using BucketId = std::size_t;

/// The parameters of a Session and the buckets that they are in.
class ParameterList {
 public:
  /// `where` begins every error.
  explicit ParameterList(std::string where, int ranks) : where_(std::move(where)), ranks_(ranks) {}

  ParameterId add(Parameter parameter) {
    parameter.count = 1;
    for (const std::int64_t extent : parameter.shape) {
      if (extent < 0) throw bad("add: parameter \"" + parameter.name + "\" has dimension " + std::to_string(extent));
      if (__builtin_mul_overflow(parameter.count, static_cast<std::size_t>(extent), &parameter.count) ||
          parameter.count > kMostElements)
        throw bad("add: parameter \"" + parameter.name + "\" has more than 2^56 elements");
    }
    if (parameter.root < 0 || parameter.root >= ranks_)
      throw bad("add: parameter \"" + parameter.name + "\" comes from rank " + std::to_string(parameter.root) + " of " +
                std::to_string(ranks_));
    for (const Parameter& other : parameters_)
      if (other.name == parameter.name) throw bad("add: parameter \"" + parameter.name + "\" was added before");
    parameters_.push_back(std::move(parameter));
    bucket_of_.push_back(kNone);
    return parameters_.size() - 1;
  }

  BucketId add_bucket(std::span<const ParameterId> parameters) {
    if (parameters.empty()) throw bad("add_bucket: no parameters");
    if (buckets_.size() == kMostBuckets)
      throw bad("add_bucket: more than " + std::to_string(kMostBuckets) + " buckets");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const ParameterId id = parameters[i];
      if (id >= parameters_.size()) throw bad("add_bucket: there is no parameter " + std::to_string(id));
      const auto before = parameters.first(i);
      if (bucket_of_[id] != kNone || std::find(before.begin(), before.end(), id) != before.end())
        throw bad("add_bucket: \"" + parameters_[id].name + "\" is in a bucket already");
      if (parameters_[id].operation != Operation::all_reduce && parameters.size() > 1)
        throw bad("add_bucket: \"" + parameters_[id].name + "\" is of " + to_string(parameters_[id].operation) +
                  ", which has a bucket of its own");
    }
    for (const ParameterId id : parameters) bucket_of_[id] = buckets_.size();
    buckets_.emplace_back().parameters.assign(parameters.begin(), parameters.end());
    return buckets_.size() - 1;
  }

  void set_priority(ParameterId id, int priority) {
    if (id >= parameters_.size()) throw bad("set_priority: there is no parameter " + std::to_string(id));
    parameters_[id].priority = priority;
  }

  /// Gives buckets their turns: by the most urgent parameter of each, which is that of the highest priority, and among
  /// such the one that was added first.
  void order_buckets() {
    const auto more_urgent = [&](ParameterId a, ParameterId b) {
      const int of_a = parameters_[a].priority, of_b = parameters_[b].priority;
      return of_a != of_b ? of_a > of_b : a < b;
    };
    std::vector<std::pair<ParameterId, Bucket*>> order;
    for (Bucket& bucket : buckets_) {
      const std::vector<ParameterId>& all = bucket.parameters;
      order.emplace_back(*std::min_element(all.begin(), all.end(), more_urgent), &bucket);
    }
    std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) { return more_urgent(a.first, b.first); });
    for (std::size_t turn = 0; turn < order.size(); ++turn) order[turn].second->operation.turn = turn;
  }

  /// Puts what is in no bucket yet into ones of about so many bytes, in order.
  void fill_buckets(std::size_t bucket_bytes) {
    std::vector<ParameterId> open;
    std::size_t bytes = 0;
    const auto close = [&] {
      if (!open.empty()) add_bucket(open);
      open.clear();
      bytes = 0;
    };
    for (ParameterId id = 0; id < parameters_.size(); ++id) {
      if (bucket_of_[id] != kNone) continue;
      if (parameters_[id].operation != Operation::all_reduce) {
        add_bucket({&id, 1});
        continue;
      }
      const std::size_t size = parameters_[id].count * element_bytes(parameters_[id].type);
      if (bytes != 0 && bytes + size > bucket_bytes) close();
      open.push_back(id);
      bytes += size;
    }
    close();
  }

  int ranks() const { return ranks_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// The parameters of every bucket so far.
  std::vector<std::vector<ParameterId>> declared() const {
    std::vector<std::vector<ParameterId>> all;
    for (const Bucket& bucket : buckets_) all.push_back(bucket.parameters);
    return all;
  }
  std::deque<Bucket>& buckets() { return buckets_; }
  const std::deque<Bucket>& buckets() const { return buckets_; }
  BucketId bucket_of(ParameterId id) const { return bucket_of_[id]; }

 private:
  static constexpr BucketId kNone = static_cast<BucketId>(-1);
  static constexpr std::size_t kMostElements = std::size_t{1} << 56;
  static constexpr std::size_t kMostBuckets = std::size_t{1} << 14;  ///< nine channels each, of four million

  Error bad(const std::string& what) const { return Error(Errc::invalid_argument, where_ + what); }

  std::string where_;
  int ranks_;
  std::vector<Parameter> parameters_;
  std::vector<BucketId> bucket_of_;
  std::deque<Bucket> buckets_;
};

}  // namespace tightwire
