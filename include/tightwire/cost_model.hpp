#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tightwire/error.hpp>

namespace tightwire {

/// What moving bytes costs. Links of ranks that share a node's are given for the node.
struct LinkCost {
  double latency_seconds = 0;   ///< of a round of messages, whatever their sizes
  double message_seconds = 0;   ///< of the sender, for every message
  double bytes_per_second = 0;  ///< per direction
  /// How much of the shorter of codec work and transfer hides behind the longer: 1 where a network card moves the
  /// bytes, 0 where the thread that encodes does.
  double overlap = 1;
};

/// What a codec costs per byte of fp32 gradient that it is given, or makes.
struct CodecCost {
  double encode_seconds = 0;   ///< a contribution, or a sum
  double combine_seconds = 0;  ///< adding another rank's contribution to a sum
  double decode_seconds = 0;
};

/// Costs of codecs by bytes of a bucket, since in cache they are others: between two sizes that were measured they are
/// interpolated, beyond them those of the nearest hold.
class CodecCosts {
 public:
  void add(const std::string& codec, double bucket_bytes, const CodecCost& cost) {
    points_[codec][bucket_bytes] = cost;
  }

  bool knows(const std::string& codec) const { return points_.count(codec) != 0; }
  const std::map<std::string, std::map<double, CodecCost>>& points() const { return points_; }

  /// Throws Error(invalid_argument) for a codec without a cost.
  CodecCost at(const std::string& codec, double bucket_bytes) const {
    const auto found = points_.find(codec);
    if (found == points_.end())
      throw Error(Errc::invalid_argument, "cost model: the cost of " + codec + " was not measured; calibrate with it");
    const auto& points = found->second;
    const auto above = points.lower_bound(bucket_bytes);
    if (above == points.begin()) return above->second;
    const auto below = std::prev(above);
    if (above == points.end()) return below->second;
    const double t = std::log(bucket_bytes / below->first) / std::log(above->first / below->first);
    const auto between = [&](double a, double b) { return a + (b - a) * t; };
    return {between(below->second.encode_seconds, above->second.encode_seconds),
            between(below->second.combine_seconds, above->second.combine_seconds),
            between(below->second.decode_seconds, above->second.decode_seconds)};
  }

 private:
  std::map<std::string, std::map<double, CodecCost>> points_;
};

/// What one codec has to do, in bytes of fp32.
struct CodecWork {
  std::string codec;
  double encoded = 0, combined = 0, decoded = 0;
  double encoded_in_sums = 0;  ///< of `encoded`: while sums are formed, the owner's own contribution and the sum
};

struct Sent {
  double messages = 0;
  double bytes = 0;
  Sent& operator+=(const Sent& other) {
    messages += other.messages;
    bytes += other.bytes;
    return *this;
  }
};

/// What a rank does for a bucket from one point to another where it waits for all of it. Chunks overlap within.
struct Stage {
  int rounds = 1;           ///< of messages that wait for each other
  double chunks = 1;        ///< that follow each other
  double windows = 1;       ///< of chunks under way together, that follow each other
  double bucket_bytes = 0;  ///< of gradient
  Sent inside, across;      ///< to ranks of the same node, and to others
  double fill = 0;          ///< part of transfer and work before the last rank of a ring has begun, and behind
  bool alone = false;       ///< whether of a node's ranks one alone sends across, and not each as much
  std::vector<CodecWork> work;

  CodecWork& work_of(const std::string& codec) {
    for (CodecWork& known : work)
      if (known.codec == codec) return known;
    return work.emplace_back(CodecWork{codec});
  }
};

/// All that a rank does for a bucket, stage behind stage.
using BucketLoad = std::vector<Stage>;

/// Where ranks are, and what joins them.
struct Cluster {
  int ranks = 2;
  int per_node = 1;
  LinkCost inside;  ///< of a rank to those of its node
  LinkCost across;  ///< of a node, shared by its ranks
};

/// A stage's parts, and what they come to.
struct StageTime {
  double latency = 0;
  double inside = 0, across = 0;  ///< transfer within nodes, and between them
  double codec = 0;
  double seconds = 0;
};

/// Time of a stage:
///
///     latency  rounds x the latency of the slowest link used
///     inside   messages to ranks of the same node x their cost + bytes / rate
///     across   the same of other nodes, bytes times the ranks that share the link
///     codec    work x cost
///     all      times 1 + fill
///     seconds  latency + across beside (inside beside codec), but no less than windows x latency
///     a beside b   max(a, b) + min(a, b) x (1 - overlap x (1 - 1 / chunks)), by the link's overlap
///
/// The last term is what cannot hide: of a single chunk nothing does, since it is encoded, sent and decoded in turn.
/// Where messages are short, what counts is that a window of chunks begins when the one before has arrived.
inline StageTime time_of(const Stage& stage, const Cluster& cluster, const CodecCosts& costs) {
  StageTime time;
  const auto transfer = [&](const Sent& sent, const LinkCost& link, int sharing) {
    if (sent.messages == 0) return 0.0;
    if (!(link.bytes_per_second > 0)) throw Error(Errc::invalid_argument, "cost model: a link needs a rate above 0");
    time.latency = std::max(time.latency, stage.rounds * link.latency_seconds);
    return (sent.messages * link.message_seconds + sharing * sent.bytes / link.bytes_per_second) * (1 + stage.fill);
  };
  time.inside = transfer(stage.inside, cluster.inside, 1);
  time.across = transfer(stage.across, cluster.across, stage.alone ? 1 : cluster.per_node);
  for (const CodecWork& work : stage.work) {
    const CodecCost cost = costs.at(work.codec, stage.bucket_bytes);
    time.codec +=
        work.encoded * cost.encode_seconds + work.combined * cost.combine_seconds + work.decoded * cost.decode_seconds;
  }
  time.codec *= 1 + stage.fill;
  const auto beside = [&](double a, double b, double overlap) {
    return std::max(a, b) + std::min(a, b) * (1 - overlap * (1 - 1 / std::max(stage.chunks, 1.0)));
  };
  const double within = beside(time.inside, time.codec, cluster.inside.overlap);
  time.seconds = time.latency + beside(time.across, within, cluster.across.overlap);
  time.seconds = std::max(time.seconds, stage.windows * time.latency);
  return time;
}

/// Seconds for a bucket.
inline double seconds_of(const BucketLoad& bucket, const Cluster& cluster, const CodecCosts& costs) {
  double seconds = 0;
  for (const Stage& stage : bucket) seconds += time_of(stage, cluster, costs).seconds;
  return seconds;
}

/// Bytes that a rank sends for a bucket, to everyone and to other nodes.
inline Sent sent_by(const BucketLoad& bucket, bool across_only = false) {
  Sent sent;
  for (const Stage& stage : bucket) {
    if (!across_only) sent += stage.inside;
    sent += stage.across;
  }
  return sent;
}

/// A training step: gradients of buckets become ready, one after the other and evenly, in the last two thirds of
/// `compute_seconds` (the backward pass takes twice as long as the forward pass); each is reduced behind the one
/// before.
struct StepTime {
  double seconds = 0;
  double communication_seconds = 0;  ///< of all buckets
  double exposed_seconds = 0;        ///< for which the step waits
  double communication_share() const { return seconds > 0 ? exposed_seconds / seconds : 0; }
};

inline StepTime step_time(const std::vector<double>& bucket_seconds, double compute_seconds) {
  StepTime step;
  const double forward = compute_seconds / 3;
  double free = 0;
  for (std::size_t i = 0; i < bucket_seconds.size(); ++i) {
    const double done = static_cast<double>(i + 1) / static_cast<double>(bucket_seconds.size());
    free = std::max(free, forward + (compute_seconds - forward) * done) + bucket_seconds[i];
    step.communication_seconds += bucket_seconds[i];
  }
  step.seconds = std::max(free, compute_seconds);
  step.exposed_seconds = step.seconds - compute_seconds;
  return step;
}

}  // namespace tightwire
