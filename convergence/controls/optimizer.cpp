// Faults of what belongs to the optimizer.
#include <cstddef>
#include <vector>

#include "controls.hpp"

namespace convergence {
namespace {

class MomentumTwice final : public Control {
  void before_reduction(const Step& step) override {
    constexpr float kMomentum = 0.9f;
    velocity_.resize(step.gradients.size());
    for (std::size_t p = 0; p < velocity_.size(); ++p) {
      velocity_[p].resize(step.gradients[p].size());
      for (std::size_t i = 0; i < velocity_[p].size(); ++i)
        step.gradients[p][i] = velocity_[p][i] = kMomentum * velocity_[p][i] + step.gradients[p][i];
    }
  }

  std::vector<std::vector<float>> velocity_;
};

class UnscaledRate final : public Control {
  double learning_rate_factor(std::size_t ranks) const override { return 1 / static_cast<double>(ranks); }
};

}  // namespace

std::unique_ptr<Control> make_momentum_twice() { return std::make_unique<MomentumTwice>(); }
std::unique_ptr<Control> make_unscaled_rate() { return std::make_unique<UnscaledRate>(); }

}  // namespace convergence
