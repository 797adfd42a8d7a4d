#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

#include "options.hpp"

namespace convergence {

/// One step of one rank, between backward and optimizer.
struct Step {
  std::size_t number;  ///< from 0
  std::size_t rank, ranks;
  std::uint64_t seed;
  std::span<const std::span<float>> gradients;  ///< by parameter; the results, after the reduction
  const tightwire::Session& session;
};

/// A change to a training that the suite must notice (negative) or must not (positive). All sabotage is here, outside
/// the library. Every rank has its own.
class Control {
 public:
  Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  virtual ~Control() = default;

  virtual void configure(tightwire::SessionOptions&, Options&) {}
  virtual double learning_rate_factor(std::size_t /*ranks*/) const { return 1; }
  /// Whose batches a rank takes.
  virtual std::size_t data_of(std::size_t rank, std::size_t /*ranks*/) const { return rank; }
  /// Whether the Session is made anew before this step. What the old one held is handed over in `save`.
  virtual bool rebuilds(std::size_t /*step*/) const { return false; }
  virtual void save(const tightwire::Session&) {}
  virtual void restore(tightwire::Session&) {}
  virtual void before_reduction(const Step&) {}
  virtual void after_reduction(const Step&) {}
};

struct ControlDescription {
  std::string name;
  bool negative;
  std::string what;
};

const std::vector<ControlDescription>& controls();
/// Throws std::invalid_argument that lists the controls.
std::unique_ptr<Control> make_control(const std::string& name);

std::unique_ptr<Control> make_feedback_off();
std::unique_ptr<Control> make_feedback_twice();
std::unique_ptr<Control> make_momentum_twice();
std::unique_ptr<Control> make_replicas_differ();
std::unique_ptr<Control> make_sum_not_mean();
std::unique_ptr<Control> make_stale_residual();
std::unique_ptr<Control> make_shared_noise();
std::unique_ptr<Control> make_dropped_contribution();
std::unique_ptr<Control> make_unscaled_rate();
std::unique_ptr<Control> make_reversed_sum();
std::unique_ptr<Control> make_rebuilt();
std::unique_ptr<Control> make_independent_noise();

}  // namespace convergence
