#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

#include "options.hpp"
#include "task.hpp"

namespace convergence {

/// The options with what they leave to the task filled in. Throws std::invalid_argument.
Options complete(Options options);

/// Throws std::invalid_argument that lists the optimizers.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options, std::vector<torch::Tensor> parameters);

/// Rises in the first steps, is the highest in half of them, and then falls twice by a factor of ten.
double learning_rate(const Options& options, std::size_t step);
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

/// Scales gradients down to a common length; the same on all ranks, which have the same gradients.
void clip(std::vector<torch::Tensor>& parameters, double length);

}  // namespace convergence
