#include <cmath>

#include "task.hpp"

namespace convergence::logistic {
namespace {

constexpr std::int64_t kSamples = 2048, kInputs = 64, kClasses = 32, kBatch = 16;
constexpr double kPenalty = 0.01;

torch::Tensor penalized(const torch::Tensor& logits, const torch::Tensor& classes, const torch::Tensor& weights) {
  return torch::cross_entropy_loss(logits, classes) + weights.square().sum() * (kPenalty / 2);
}

class Logistic final : public Task {
 public:
  explicit Logistic(std::uint64_t seed) : seed_(seed) {
    at::Generator random = generator(seed, 3);
    {
      const torch::NoGradGuard no_grad;
      inputs_ = torch::zeros({kSamples, kInputs}).normal_(0, 1, random);
      const torch::Tensor truth = torch::zeros({kInputs, kClasses}).normal_(0, 0.5, random);
      classes_ = torch::multinomial(torch::softmax(inputs_.matmul(truth), 1), 1, false, random).flatten();
    }
    weights_ = add("weights", {kInputs, kClasses}, 0, random);
    first_ = full_loss(weights_);
  }

  torch::Tensor loss(const BatchNumber& batch) override {
    const torch::Tensor rows = draw_indices(seed_, batch, kBatch, kSamples);
    return penalized(inputs_.index_select(0, rows).matmul(weights_), classes_.index_select(0, rows), weights_);
  }

  Evaluation evaluate() override {
    if (std::isnan(least_)) least_ = find_least();
    const double now = full_loss(weights_);
    return {now, log_excess(now, least_, first_)};
  }

 private:
  double full_loss(const torch::Tensor& weights) const {
    const torch::NoGradGuard no_grad;
    const torch::Tensor w = weights.to(torch::kFloat64);
    return penalized(inputs_.to(torch::kFloat64).matmul(w), classes_, w).item<double>();
  }

  /// Accelerated gradient steps on all samples. The loss is strongly convex (kPenalty) and no steeper than 1, so that
  /// 400 steps leave less than 1e-12 of the distance.
  double find_least() const {
    constexpr int kSteps = 400;
    constexpr double kRate = 1;
    const double root = std::sqrt(kPenalty * kRate), momentum = (1 - root) / (1 + root);
    const torch::Tensor x = inputs_.to(torch::kFloat64);
    torch::Tensor w = torch::zeros({kInputs, kClasses}, torch::kFloat64), before = w.clone();
    const torch::NoGradGuard no_grad;
    const torch::Tensor targets = torch::one_hot(classes_, kClasses).to(torch::kFloat64);
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor at = w + momentum * (w - before);
      const torch::Tensor excess = torch::softmax(x.matmul(at), 1) - targets;
      before = w;
      w = at - kRate * (x.t().matmul(excess) / kSamples + kPenalty * at);
    }
    return penalized(x.matmul(w), classes_, w).item<double>();
  }

  std::uint64_t seed_;
  torch::Tensor inputs_, classes_, weights_;
  double first_ = 0, least_ = std::nan("");
};

}  // namespace
}  // namespace convergence::logistic

namespace convergence {

std::unique_ptr<Task> make_logistic(std::uint64_t seed) { return std::make_unique<logistic::Logistic>(seed); }

}  // namespace convergence
