// The bookkeeping of updates that the convergence suite rests on: what is kept explains what is missing, and nothing
// else does.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "recorder.hpp"

#include "support/model.hpp"
#include "support/one_parameter.hpp"
#include "support/ranks.hpp"

namespace convergence {
namespace {

using namespace tightwire::testing;

/// The balance after two steps of two ranks; residuals as they are then are multiplied by each of `factors`.
Balance balance_of(const tightwire::Codec& codec, std::span<const float> factors, bool rotated) {
  const Model model = one_parameter({40, 64}, codec);
  std::vector<Recorder> recorders(2, Recorder(2));
  Balance balance;
  run_all(2, [&](const std::shared_ptr<tightwire::Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, with(tightwire::Algorithm::two_shot));
    Recorder& recorder = recorders[me];
    std::vector<float> gradient(model[0].count());
    const std::vector<std::span<float>> parts = {gradient};
    for (std::size_t step = 0; step < 2; ++step) {
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = std::sin(static_cast<float>(7 * i + 3 * step + me) * 0.37f);
      recorder.gradient(me, step, parts);
      recorder.collect_gradients(*transport, 9, step);
      session->all_reduce(std::span<float>(gradient));
      session->commit();
      if (me == 0) recorder.result(step, parts);
    }
    for (const float factor : factors) session->scale_residuals(factor);
    recorder.residual(me, *session);
    recorder.collect_residuals(*transport, 9);
    if (me == 0) balance = recorder.balance(rotated);
  });
  return balance;
}

TEST(Recorder, FindsNothingLostWhereNothingIs) {
  for (const char* codec : {"int8:block=64", "int4:block=64", "topk:ratio=0.1"})
    EXPECT_LT(balance_of(tightwire::parse_codec(codec), {}, false).lost, 1e-5) << codec;
}

TEST(Recorder, FindsWhatNoResidualHolds) {
  EXPECT_GT(balance_of(tightwire::parse_codec("topk:ratio=0.1"), std::vector<float>{0.f}, false).lost, 0.1);
}

TEST(Recorder, ResidualsThatAreNoNumbersExplainNothing) {
  const std::vector<float> beyond_all = {3e38f, 3e38f};
  EXPECT_FALSE(std::isfinite(balance_of(tightwire::parse_codec("int4:block=64"), beyond_all, false).lost));
  EXPECT_FALSE(std::isfinite(balance_of(tightwire::parse_codec("hadamard:64+int4:block=64"), beyond_all, true).lost));
}

}  // namespace
}  // namespace convergence
