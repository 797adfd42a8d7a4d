// Faults of what is reduced and of how ranks come to their results, and a harmless change of the order of the sum.
#include <algorithm>
#include <cmath>
#include <limits>

#include "controls.hpp"

namespace convergence {
namespace {

class ReplicasDiffer final : public Control {
  void after_reduction(const Step& step) override {
    if (step.rank + 1 != step.ranks) return;
    for (const std::span<float> gradient : step.gradients)
      for (float& element : gradient) element = std::nextafter(element, std::numeric_limits<float>::infinity());
  }
};

class SumNotMean final : public Control {
  void configure(tightwire::SessionOptions& session, Options&) override { session.average = false; }
};

class DroppedContribution final : public Control {
  void before_reduction(const Step& step) override {
    constexpr std::size_t kOneIn = 50;
    if (step.rank + 1 != step.ranks || step.number % kOneIn != kOneIn / 2) return;
    for (const std::span<float> gradient : step.gradients) std::fill(gradient.begin(), gradient.end(), 0.0f);
  }
};

class ReversedSum final : public Control {
  std::size_t data_of(std::size_t rank, std::size_t ranks) const override { return ranks - 1 - rank; }
};

}  // namespace

std::unique_ptr<Control> make_replicas_differ() { return std::make_unique<ReplicasDiffer>(); }
std::unique_ptr<Control> make_sum_not_mean() { return std::make_unique<SumNotMean>(); }
std::unique_ptr<Control> make_dropped_contribution() { return std::make_unique<DroppedContribution>(); }
std::unique_ptr<Control> make_reversed_sum() { return std::make_unique<ReversedSum>(); }

}  // namespace convergence
