// Stochastic rounding whose errors average out over ranks, or do not because all draw the same random numbers.
#include <algorithm>
#include <cmath>
#include <random>

#include "controls.hpp"

namespace convergence {
namespace {

/// Rounds to multiples of the largest magnitude, so that the mean is right: down, after a random number was added.
void round_stochastically(std::span<float> values, std::mt19937_64& random) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  if (largest == 0) return;
  std::uniform_real_distribution<float> uniform;
  for (float& value : values) value = largest * std::floor(value / largest + uniform(random));
}

class Noise final : public Control {
 public:
  explicit Noise(bool shared) : shared_(shared) {}

 private:
  void before_reduction(const Step& step) override {
    std::seed_seq sequence{step.seed, static_cast<std::uint64_t>(step.number),
                           static_cast<std::uint64_t>(shared_ ? 0 : step.rank)};
    std::mt19937_64 random(sequence);
    constexpr std::size_t kBlock = 4;
    for (const std::span<float> gradient : step.gradients)
      for (std::size_t at = 0; at < gradient.size(); at += kBlock)
        round_stochastically(gradient.subspan(at, std::min(kBlock, gradient.size() - at)), random);
  }

  bool shared_;
};

}  // namespace

std::unique_ptr<Control> make_shared_noise() { return std::make_unique<Noise>(true); }
std::unique_ptr<Control> make_independent_noise() { return std::make_unique<Noise>(false); }

}  // namespace convergence
