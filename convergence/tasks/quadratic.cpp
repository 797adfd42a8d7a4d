#include "task.hpp"

namespace convergence::quadratic {
namespace {

constexpr std::int64_t kSide = 64;
constexpr double kNoise = 0.1;

/// f(w) = sum of h w^2 / 2, with gradients h w + noise. The least value, 0, is known, and how far the noise keeps from
/// it.
class Quadratic final : public Task {
 public:
  explicit Quadratic(std::uint64_t seed) : seed_(seed) {
    const torch::NoGradGuard no_grad;
    at::Generator random = generator(seed, 2);
    curvature_ = torch::logspace(0, -2, kSide * kSide).index_select(0, torch::randperm(kSide * kSide, random));
    curvature_ = curvature_.view({kSide, kSide});
    weights_ = add("weights", {kSide, kSide}, 1, random);
    first_ = value();
  }

  torch::Tensor loss(const BatchNumber& batch) override {
    constexpr std::uint64_t kNoiseOf = std::uint64_t{2} << 32;
    at::Generator random = generator(seed_, kNoiseOf + batch.global());
    const torch::Tensor noise = torch::empty({kSide, kSide}).normal_(0, kNoise, random);
    return (curvature_ * weights_.square()).sum() / 2 + (noise * weights_).sum();
  }

  Evaluation evaluate() override {
    const double now = value();
    return {now, log_excess(now, 0, first_)};
  }

 private:
  double value() const {
    const torch::NoGradGuard no_grad;
    return (curvature_ * weights_.square()).sum(torch::kFloat64).item<double>() / 2;
  }

  std::uint64_t seed_;
  torch::Tensor curvature_, weights_;
  double first_ = 0;
};

}  // namespace
}  // namespace convergence::quadratic

namespace convergence {

std::unique_ptr<Task> make_quadratic(std::uint64_t seed) { return std::make_unique<quadratic::Quadratic>(seed); }

}  // namespace convergence
