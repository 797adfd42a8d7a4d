#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace convergence {

/// What one training is, but for the task's own numbers. Zero stands for "as the task recommends", where it says so.
struct Options {
  std::string task;
  std::string codec = "exact";  ///< as tightwire::set_codec reads it
  bool error_feedback = true;
  double momentum_correction = 0;  ///< above 0: applied by the Session, and none by the optimizer
  std::string control = "none";    ///< the sabotage, or the harmless change, of controls.hpp
  std::uint64_t seed = 1;          ///< of data, their order and the first weights
  int ranks = 4;
  bool launched = false;  ///< this process is one rank of a job that a launcher describes
  std::size_t steps = 0;  ///< 0: the task's
  std::string optimizer;  ///< sgd, momentum, nesterov, adam, adamw; empty: the task's
  double learning_rate = 0;
  double weight_decay = 0;
  double clip_norm = 0;         ///< of the mean gradient, after its reduction; 0: none
  std::size_t accumulate = 1;   ///< batches per rank whose gradients are added up before they are reduced
  double warm_up = 0.05;        ///< part of the steps in which the learning rate rises
  std::size_t evaluations = 8;  ///< in a training, evenly spread, the last one at its end
  std::string parameters;       ///< file for a sample of the parameters at every evaluation; empty: none
};

}  // namespace convergence
