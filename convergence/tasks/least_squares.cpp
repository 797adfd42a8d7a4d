#include <cmath>

#include "task.hpp"

namespace convergence::least_squares {
namespace {

constexpr std::int64_t kSamples = 2048, kInputs = 64, kOutputs = 32, kBatch = 16;

class LeastSquares final : public Task {
 public:
  explicit LeastSquares(std::uint64_t seed) : seed_(seed) {
    const torch::NoGradGuard no_grad;
    at::Generator random = generator(seed, 1);
    // Directions differ in scale by a factor of 5, curvatures by 25.
    const torch::Tensor scales = torch::logspace(0, -0.7, kInputs);
    inputs_ = torch::zeros({kSamples, kInputs}).normal_(0, 1, random) * scales;
    const torch::Tensor truth = torch::zeros({kInputs, kOutputs}).normal_(0, 1, random);
    targets_ = inputs_.matmul(truth) + torch::zeros({kSamples, kOutputs}).normal_(0, 0.3, random);
    weights_ = add("weights", {kInputs, kOutputs}, 0, random);

    const torch::Tensor x = inputs_.to(torch::kFloat64), y = targets_.to(torch::kFloat64);
    const torch::Tensor optimum = torch::linalg_solve(x.t().matmul(x), x.t().matmul(y));
    least_ = full_loss(optimum);
    first_ = full_loss(weights_);
  }

  torch::Tensor loss(const BatchNumber& batch) override {
    const torch::Tensor rows = draw_indices(seed_, batch, kBatch, kSamples);
    const torch::Tensor error = inputs_.index_select(0, rows).matmul(weights_) - targets_.index_select(0, rows);
    return error.square().sum() / (2 * kBatch);
  }

  Evaluation evaluate() override {
    const double now = full_loss(weights_);
    return {now, log_excess(now, least_, first_)};
  }

 private:
  double full_loss(const torch::Tensor& weights) const {
    const torch::NoGradGuard no_grad;
    const torch::Tensor error =
        inputs_.to(torch::kFloat64).matmul(weights.to(torch::kFloat64)) - targets_.to(torch::kFloat64);
    return error.square().sum().item<double>() / (2 * kSamples);
  }

  std::uint64_t seed_;
  torch::Tensor inputs_, targets_, weights_;
  double least_ = 0, first_ = 0;
};

}  // namespace
}  // namespace convergence::least_squares

namespace convergence {

std::unique_ptr<Task> make_least_squares(std::uint64_t seed) {
  return std::make_unique<least_squares::LeastSquares>(seed);
}

}  // namespace convergence
