// Faults of error feedback, and a rebuild of buckets done right.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "controls.hpp"

namespace convergence {
namespace {

constexpr std::size_t kRebuildEvery = 20;

class FeedbackOff final : public Control {
  void configure(tightwire::SessionOptions& session, Options& options) override {
    session.error_feedback = false;
    // Schemes that know they need feedback want to be told that this is on purpose.
    for (const char* name : {"topk", "randomk", "powersgd"})
      if (options.codec.starts_with(name)) {
        const std::size_t values = std::min(options.codec.find('+'), options.codec.size());
        const bool has_options = options.codec.find(':') < values;
        options.codec.insert(values, has_options ? ",without-feedback" : ":without-feedback");
        session.codec = tightwire::parse_codec(options.codec);
      }
  }
};

class FeedbackTwice final : public Control {
  void before_reduction(const Step& step) override {
    for (tightwire::ParameterId id = 0; id < step.gradients.size(); ++id) {
      const auto residual = step.session.sender_residual(id);
      for (std::size_t i = 0; i < residual.size(); ++i) step.gradients[id][i] += residual[i];
    }
  }
};

/// Residuals are kept by place, as in buckets, and parameters are in the opposite order after a rebuild.
class StaleResidual final : public Control {
  bool rebuilds(std::size_t step) const override { return step > 0 && step % kRebuildEvery == 0; }
  void save(const tightwire::Session& session) override {
    kept_.clear();
    for (tightwire::ParameterId id = session.parameters().size(); id-- > 0;) {
      const auto residual = session.sender_residual(id);
      kept_.insert(kept_.end(), residual.begin(), residual.end());
    }
    std::reverse(kept_.begin(), kept_.end());
  }
  void before_reduction(const Step& step) override {
    std::size_t at = 0;
    for (const std::span<float> gradient : step.gradients)
      for (float& element : gradient)
        if (at < kept_.size()) element += kept_[at++];
    kept_.clear();
  }

  std::vector<float> kept_;
};

class Rebuilt final : public Control {
  bool rebuilds(std::size_t step) const override { return step > 0 && step % kRebuildEvery == 0; }
  void save(const tightwire::Session& session) override { state_ = session.save(); }
  void restore(tightwire::Session& session) override { session.restore(state_); }

  std::vector<std::byte> state_;
};

}  // namespace

std::unique_ptr<Control> make_feedback_off() { return std::make_unique<FeedbackOff>(); }
std::unique_ptr<Control> make_feedback_twice() { return std::make_unique<FeedbackTwice>(); }
std::unique_ptr<Control> make_stale_residual() { return std::make_unique<StaleResidual>(); }
std::unique_ptr<Control> make_rebuilt() { return std::make_unique<Rebuilt>(); }

}  // namespace convergence
