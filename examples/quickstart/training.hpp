#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/statistics.hpp>
#include <tightwire/transport.hpp>

#include "data.hpp"

namespace quickstart {

/// Equal on all ranks.
struct TrainingOptions {
  std::string codec = "exact";  ///< as tightwire::parse_codec reads it
  bool error_feedback = true;
  int epochs = 2;
  std::size_t steps_per_epoch = 0;  ///< 0: as many as the images suffice for
  std::size_t batch_per_rank = 32;
  std::uint64_t seed = 1;       ///< of the first weights and of the order of the images
  double learning_rate = 0.05;  ///< at its highest, see WarmUpThenCosine
  double momentum = 0.9;
  bool momentum_correction = false;  ///< applied by the Session before elements are chosen, not by the optimizer
};

struct Epoch {
  double loss;                                  ///< mean over its steps and over the ranks
  double test_accuracy;                         ///< 0..1, on all test images
  std::vector<std::uint64_t> parameter_hashes;  ///< by rank, exchanged after the last step

  bool ranks_identical() const;
};

struct TrainingResult {
  TrainingOptions options;
  int ranks = 1;
  std::string transport;
  std::vector<Epoch> epochs;
  double final_loss = 0;        ///< mean over the last 100 steps and over the ranks
  double training_seconds = 0;  ///< steps only
  double seconds = 0;           ///< with evaluation and comparison of ranks
  std::uint64_t steps = 0;
  tightwire::Statistics traffic;  ///< of this rank, over all steps

  double test_accuracy() const { return epochs.back().test_accuracy; }
  bool ranks_identical() const;
  double sent_bytes_per_step() const { return static_cast<double>(traffic.sent_bytes) / static_cast<double>(steps); }
  /// Part of the steps' time for which this rank waited for the all-reduce: for bytes, codec, and slower ranks.
  double communication_share() const { return traffic.blocked_seconds / training_seconds; }
};

/// One step, as this rank sees it.
struct Progress {
  const TrainingOptions& options;
  int epoch;                 ///< from 1
  std::size_t step;          ///< of the epoch, from 1
  std::size_t steps;         ///< of the epoch
  double loss;               ///< mean over the epoch's steps so far, this rank's images
  double images_per_second;  ///< all ranks together, over the epoch's steps so far
  tightwire::StepStatistics last_step;
};

/// Trains the network of model.hpp on the ranks of a transport. Collective. The same options give the same parameters,
/// whatever the transport.
TrainingResult train(const std::shared_ptr<tightwire::Transport>& transport, const FashionMnist& data,
                     const TrainingOptions& options, const std::function<void(const Progress&)>& listen = {});

}  // namespace quickstart
