#pragma once
#include <string>
#include <vector>

#include <tightwire/cost_model.hpp>
#include <tightwire/policy.hpp>
#include <tightwire/session_options.hpp>

namespace tightwire::tool {

/// One way to synchronize, on some number of ranks.
struct Forecast {
  std::string codec;
  bool by_levels = false;  ///< inside nodes exact, across them with the codec
  bool ring = false;       ///< from rank to rank
  StepTime step;
  double rank_bytes = 0;   ///< that a rank sends in a step
  double node_bytes = 0;   ///< that its node's link carries, in one direction
  double messages = 0;     ///< that a rank sends
  int rounds = 0;          ///< of messages that wait for each other, of all buckets
  double frame_bytes = 0;  ///< memory of a rank, see add_memory
  SessionOptions options = {};
};

/// What the schemes cost on a cluster, and what follows.
struct Advice {
  std::vector<Forecast> forecasts;
  std::size_t best = 0;   ///< in `forecasts`
  std::size_t exact = 0;  ///< the faster of those without loss
  bool compress = false;  ///< whether the best is faster than exact by a twentieth of the step
};

/// Predicts every codec, flat and where nodes have several ranks by levels. Throws Error(invalid_argument) for ranks
/// that are no multiple of those per node, and what a Session throws of its options.
Advice forecast(const std::vector<Parameter>& parameters, const std::vector<std::string>& codecs,
                const SessionOptions& options, const Cluster& cluster, const CodecCosts& costs, double compute_seconds);

/// Tells what frames take of a rank's memory: takes it, for a bucket at a time.
void add_memory(Advice& advice, const std::vector<Parameter>& parameters, int ranks);

}  // namespace tightwire::tool
