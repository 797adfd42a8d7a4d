#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>  // first: clang 14 cannot read what follows without it
#include <torch/types.h>

#include "options.hpp"

namespace convergence {

struct NamedParameter {
  std::string name;
  torch::Tensor value;  ///< fp32, contiguous, a leaf that wants a gradient
};

/// Which samples a loss is of. Every batch of a training has a number of its own, the same whatever the codec.
struct BatchNumber {
  std::uint64_t step;  ///< counts batches of a rank
  std::uint64_t rank;
  std::uint64_t ranks;

  std::uint64_t global() const { return step * ranks + rank; }
};

struct Evaluation {
  double loss;    ///< over all data there are to evaluate with
  double metric;  ///< what is judged; see TaskDescription::metric
};

/// A model with its data, as one rank has them. The same seed gives the same on every rank.
class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  virtual torch::Tensor loss(const BatchNumber& batch) = 0;
  virtual Evaluation evaluate() = 0;

  std::vector<NamedParameter>& parameters() { return parameters_; }

 protected:
  /// Normally distributed with this deviation; 0: zeros.
  torch::Tensor add(std::string name, std::vector<std::int64_t> shape, double deviation, at::Generator& random);

 private:
  std::vector<NamedParameter> parameters_;
};

/// What the trainer takes where nothing else is asked for; exact training reaches a known level with it.
struct TaskDescription {
  std::string name;
  std::string what;
  std::string metric;  ///< name of what is judged
  bool higher_is_better;
  std::size_t steps;
  std::string optimizer;
  double learning_rate;  ///< for the mean over 4 ranks
};

const std::vector<TaskDescription>& tasks();
/// Throws std::invalid_argument that lists the tasks.
const TaskDescription& describe_task(const std::string& name);
std::unique_ptr<Task> make_task(const std::string& name, std::uint64_t seed);

// One per file of tasks/.
std::unique_ptr<Task> make_least_squares(std::uint64_t seed);
std::unique_ptr<Task> make_logistic(std::uint64_t seed);
std::unique_ptr<Task> make_quadratic(std::uint64_t seed);
std::unique_ptr<Task> make_fashion(std::uint64_t seed);
std::unique_ptr<Task> make_transformer(std::uint64_t seed);
std::unique_ptr<Task> make_embedding(std::uint64_t seed);

/// A generator of its own for every purpose, so that nothing drawn elsewhere changes it.
at::Generator generator(std::uint64_t seed, std::uint64_t purpose);
/// `count` numbers below `below`, for one batch.
torch::Tensor draw_indices(std::uint64_t seed, const BatchNumber& batch, std::int64_t count, std::int64_t below);
/// log10 of the part of the first excess loss that is left, no less than -8 and no more than 2.
double log_excess(double loss, double least, double first);

}  // namespace convergence
