#include "optimizing.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace convergence {
namespace {

constexpr double kMomentum = 0.9;

}  // namespace

Options complete(Options options) {
  const TaskDescription& task = describe_task(options.task);
  if (options.optimizer.empty()) options.optimizer = task.optimizer;
  if (options.steps == 0) options.steps = task.steps;
  if (options.learning_rate == 0) {
    if (options.optimizer != task.optimizer)
      throw std::invalid_argument("--learning-rate must be given: that of task " + task.name + " is for optimizer " +
                                  task.optimizer + ", not " + options.optimizer);
    options.learning_rate = task.learning_rate;
  }
  if (options.momentum_correction > 0) {
    if (options.optimizer != "momentum" && options.optimizer != "nesterov")
      throw std::invalid_argument("--momentum-correction takes the place of the optimizer's momentum, and " +
                                  options.optimizer + " has none");
  }
  options.evaluations = std::clamp<std::size_t>(options.evaluations, 1, options.steps);
  return options;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options, std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  const double rate = options.learning_rate, decay = options.weight_decay;
  const double momentum = options.momentum_correction > 0 ? 0 : kMomentum;
  const std::string& name = options.optimizer;
  if (name == "sgd") return std::make_unique<SGD>(std::move(parameters), SGDOptions(rate).weight_decay(decay));
  if (name == "momentum" || name == "nesterov")
    return std::make_unique<SGD>(
        std::move(parameters),
        SGDOptions(rate).momentum(momentum).nesterov(name == "nesterov" && momentum > 0).weight_decay(decay));
  if (name == "adam") return std::make_unique<Adam>(std::move(parameters), AdamOptions(rate).weight_decay(decay));
  if (name == "adamw") return std::make_unique<AdamW>(std::move(parameters), AdamWOptions(rate).weight_decay(decay));
  throw std::invalid_argument("there is no optimizer \"" + name + "\"; known are sgd, momentum, nesterov, adam, adamw");
}

double learning_rate(const Options& options, std::size_t step) {
  const auto steps = static_cast<double>(options.steps), at = static_cast<double>(step);
  const double rising = options.warm_up * steps;
  double rate = options.learning_rate;
  if (at < rising) rate *= (at + 1) / (rising + 1);
  constexpr double kFirstFall = 0.5, kSecondFall = 0.8;
  if (at >= kFirstFall * steps) rate *= 0.1;
  if (at >= kSecondFall * steps) rate *= 0.1;
  return rate;
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(rate);
}

void clip(std::vector<torch::Tensor>& parameters, double length) {
  double squares = 0;
  for (const torch::Tensor& parameter : parameters)
    squares += parameter.grad().square().sum(torch::kFloat64).item<double>();
  if (!(squares > length * length)) return;
  const double factor = length / std::sqrt(squares);
  for (torch::Tensor& parameter : parameters) parameter.mutable_grad().mul_(factor);
}

}  // namespace convergence
