#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>
#include <tightwire/transport.hpp>

namespace convergence {

/// What became of the gradients, over all steps up to now. Lengths are L2 norms over all parameters.
struct Balance {
  /// Distance of the sum of results from the sum of true means, in lengths of the latter (of independent steps where
  /// that is more, so that gradients that cancel do not make a small error look large).
  double update_error = 0;
  /// The part of it that no residual holds: what error feedback promises to be none. Not finite where gradients,
  /// results or residuals are not.
  double lost = 0;
  double flushed_share = 0;  ///< of elements that were not zero in the mean, those that are zero in the result
  double norm_ratio = 0;     ///< length of the results by length of the true means, both added up over the steps
};

/// Knows what went into the reductions of all ranks and what came out, independently of tightwire: it sees gradients
/// before, and results after, everything that a codec or a control does to them. Ranks are threads of one process, or
/// each has a Recorder of its own and sends what it saw to that of rank 0.
class Recorder {
 public:
  explicit Recorder(std::size_t ranks)
      : gradients_{Slots(ranks), Slots(ranks)}, residuals_(ranks), owner_squares_(ranks) {}

  /// Before the reduction of a step, by every rank.
  void gradient(std::size_t rank, std::size_t step, std::span<const std::span<float>> parts);
  /// After the reduction, by rank 0: every rank has called `gradient` then, and none the one after the next.
  void result(std::size_t step, std::span<const std::span<float>> parts);
  /// Behind each `gradient` and `residual` of ranks that are processes: rank 0 gets what all of them saw, as it is, by
  /// messages of no codec. Collective.
  void collect_gradients(tightwire::Transport& transport, std::uint32_t channel, std::size_t step);
  void collect_residuals(tightwire::Transport& transport, std::uint32_t channel);
  /// By every rank, between steps. Some barrier must lie between this and `balance`.
  void residual(std::size_t rank, const tightwire::Session& session);
  /// By rank 0. `rotated`: residuals are of rotated elements, so that only their lengths can be compared.
  Balance balance(bool rotated) const;

 private:
  using Slots = std::vector<std::vector<float>>;  // [rank][element]
  static void collect(tightwire::Transport& transport, std::uint32_t channel, Slots& slots);

  std::array<Slots, 2> gradients_;  // by parity of the step
  Slots residuals_;
  std::vector<double> owner_squares_;  // [rank]
  std::vector<double> true_sum_, result_sum_;
  double true_squares_ = 0, true_lengths_ = 0, result_lengths_ = 0;
  std::uint64_t not_zero_ = 0, flushed_ = 0;
};

}  // namespace convergence
