#include "task.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

namespace convergence {
namespace {

struct Entry {
  TaskDescription description;
  std::function<std::unique_ptr<Task>(std::uint64_t)> make;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {{"least-squares", "linear regression on 2,048 samples, optimum known", "log10 of excess loss", false, 400,
        "momentum", 0.02},
       make_least_squares},
      {{"logistic", "32 classes by logistic regression with a penalty, optimum known", "log10 of excess loss", false,
        400, "nesterov", 0.1},
       make_logistic},
      {{"quadratic", "a quadratic with curvatures from 0.01 to 1 and noisy gradients", "log10 of excess loss", false,
        500, "sgd", 0.5},
       make_quadratic},
      {{"fashion", "a small convolutional network on Fashion-MNIST", "accuracy", true, 150, "momentum", 0.05},
       make_fashion},
      {{"transformer", "a one-layer character transformer on the King James Bible", "validation loss", false, 250,
        "adamw", 3e-3},
       make_transformer},
      {{"embedding", "matrix factorization with rarely used rows, Zipf distributed", "test error", false, 300, "adam",
        0.02},
       make_embedding},
  };
  return all;
}

const Entry& find(const std::string& name) {
  std::string known;
  for (const Entry& entry : entries()) {
    if (entry.description.name == name) return entry;
    known += (known.empty() ? "" : ", ") + entry.description.name;
  }
  throw std::invalid_argument("there is no task \"" + name + "\"; known are " + known);
}

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

const std::vector<TaskDescription>& tasks() {
  static const std::vector<TaskDescription> all = [] {
    std::vector<TaskDescription> list;
    for (const Entry& entry : entries()) list.push_back(entry.description);
    return list;
  }();
  return all;
}

const TaskDescription& describe_task(const std::string& name) { return find(name).description; }
std::unique_ptr<Task> make_task(const std::string& name, std::uint64_t seed) { return find(name).make(seed); }

torch::Tensor Task::add(std::string name, std::vector<std::int64_t> shape, double deviation, at::Generator& random) {
  torch::Tensor value = torch::zeros(shape);
  if (deviation > 0) value.normal_(0, deviation, random);
  value.set_requires_grad(true);
  parameters_.push_back({std::move(name), value});
  return value;
}

at::Generator generator(std::uint64_t seed, std::uint64_t purpose) {
  return at::detail::createCPUGenerator(mixed(seed, purpose));
}

torch::Tensor draw_indices(std::uint64_t seed, const BatchNumber& batch, std::int64_t count, std::int64_t below) {
  constexpr std::uint64_t kBatches = std::uint64_t{1} << 32;
  at::Generator random = generator(seed, kBatches + batch.global());
  return torch::randint(below, {count}, random, torch::kInt64);
}

double log_excess(double loss, double least, double first) {
  if (!std::isfinite(loss)) return 2;
  return std::clamp(std::log10(std::max((loss - least) / (first - least), 1e-30)), -8.0, 2.0);
}

}  // namespace convergence
