// Momentum correction: with everything sent it is momentum SGD; with little sent it is what keeps momentum from going
// stale; and it cannot be applied twice.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"

namespace tightwire::testing::session_momentum {
namespace {

/// What plain SGD must subtract at each step to be momentum SGD, as torch.optim.SGD computes it, in double.
class MomentumSgd {
 public:
  MomentumSgd(std::size_t count, double factor, bool nesterov) : b_(count), factor_(factor), nesterov_(nesterov) {}
  double step(std::size_t i, double g) {
    b_[i] = factor_ * b_[i] + g;
    return nesterov_ ? g + factor_ * b_[i] : b_[i];
  }

 private:
  std::vector<double> b_;
  double factor_;
  bool nesterov_;
};

SessionOptions corrected(MomentumCorrection momentum, Algorithm algorithm = Algorithm::two_shot) {
  SessionOptions options;
  options.plan.algorithm = algorithm;
  options.momentum = momentum;
  options.momentum.optimizer_momentum = 0.0;
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// Steps with the same gradients for all parameters of the model, against momentum SGD.
void expect_momentum_sgd(const Model& model, int ranks, const SessionOptions& options, int steps, double tolerance,
                         const std::function<float(FastRandom&)>& gradient) {
  const std::size_t count = model[0].count();
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    MomentumSgd expected(count, static_cast<double>(options.momentum.factor), options.momentum.nesterov);
    for (int step = 0; step < steps; ++step) {
      std::vector<double> mean(count);
      for (int rank = 0; rank < ranks; ++rank) {
        FastRandom random(static_cast<std::uint64_t>(100 * step + rank + 1));
        for (std::size_t i = 0; i < count; ++i) {
          const float g = gradient(random);
          mean[i] += static_cast<double>(g) / ranks;
          if (rank == transport->rank())
            for (std::size_t p = 0; p < model.size(); ++p) gradients.set(p, i, g);
        }
      }
      session->all_reduce(gradients.pointers());
      session->commit();
      for (std::size_t i = 0; i < count; ++i) {
        const double x = expected.step(i, mean[i]);
        for (std::size_t p = 0; p < model.size(); ++p)
          ASSERT_NEAR(static_cast<double>(gradients.get(p, i)), x, tolerance) << model[p].name << " step " << step;
      }
    }
  });
}

TEST(MomentumCorrection, WithEverythingSentItIsMomentumSgd) {
  const Model model = {{"topk", {500}, ElementType::f32, TopK{.ratio = 1}},
                       {"randomk", {500}, ElementType::f32, RandomK{.ratio = 1}},
                       {"exact", {500}, ElementType::f32, Codec{}}};
  for (const Algorithm algorithm : kAlgorithms)
    for (const bool nesterov : {false, true})
      for (const int ranks : {1, 2, 4}) {
        SCOPED_TRACE(std::string(to_string(algorithm)) + " on " + std::to_string(ranks));
        expect_momentum_sgd(model, ranks, corrected({.factor = 0.9f, .nesterov = nesterov}, algorithm), 20, 2e-5,
                            [](FastRandom& random) { return random.bell(); });
        // Of numbers that 24 bits hold all along, to the bit.
        expect_momentum_sgd(model, ranks, corrected({.factor = 0.5f, .nesterov = nesterov}, algorithm), 10, 0,
                            [](FastRandom& random) { return (static_cast<float>(random.below(128)) - 64) / 8; });
      }
}

/// How far from the minimum of a quadratic bowl stochastic gradients keep top-k with momentum of either kind.
double distance_after(bool masking) {
  constexpr std::size_t kCount = 400;
  double distance = 0;
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const Model model = {{"w", {kCount}, ElementType::f32, TopK{.ratio = 0.1}}};
    const auto session = sealed_session(transport, model, corrected({.factor = 0.9f, .masking = masking}));
    Gradients gradients(model);
    FastRandom random(static_cast<std::uint64_t>(transport->rank()) + 1);
    std::vector<double> w(kCount, 1.0);
    for (int step = 0; step < 400; ++step) {
      gradients.fill([&](std::size_t, std::size_t i) {
        return static_cast<float>(w[i] * (0.2 + static_cast<double>(i) / kCount)) + 0.42f * random.bell();
      });
      session->all_reduce(gradients.pointers());
      session->commit();
      for (std::size_t i = 0; i < kCount; ++i) w[i] -= 0.03 * static_cast<double>(gradients.get(0, i));
    }
    double squares = 0;
    for (const double x : w) squares += x * x / kCount;
    if (transport->rank() == 0) distance = std::sqrt(squares);
  });
  return distance;
}

TEST(MomentumCorrection, MaskingKeepsStaleMomentumOut) {
  const double masked = distance_after(true), stale = distance_after(false);
  EXPECT_LT(1.5 * masked, stale) << "with masking " << masked << ", without " << stale;
  EXPECT_LT(masked, 0.2);
}

TEST(MomentumCorrection, MaskedMomentumIsZeroWhereElementsWereSent) {
  // One element dominates: it is sent, its momentum starts anew; the others gather theirs.
  const Model model = {{"w", {100}, ElementType::f32, TopK{.ratio = 0.01}}};
  for (const bool masking : {true, false})
    run_all(1, [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, corrected({.factor = 0.5f, .masking = masking}));
      Gradients gradients(model);
      for (int step = 0; step < 3; ++step) {
        gradients.fill([](std::size_t, std::size_t i) { return i == 7 ? 100.0f : 1.0f; });
        session->all_reduce(gradients.pointers());
        session->commit();
        const float sum_of_powers = 2 - std::ldexp(1.0f, -step);  // 1, 1.5, 1.75
        EXPECT_EQ(gradients.get(0, 7), masking ? 100.0f : 100 * sum_of_powers);
        EXPECT_EQ(gradients.get(0, 8), 0.0f);
      }
      EXPECT_EQ(session->sender_residual(0)[8], 1.0f + 1.5f + 1.75f);
      EXPECT_EQ(session->sender_residual(0)[7], 0.0f);
    });
}

TEST(MomentumCorrection, ClipsTheWholeGradientOfARank) {
  const Model model = {{"a", {64}, ElementType::f32, Codec{}}, {"b", {36}, ElementType::bf16, Codec{}}};
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, corrected({.factor = 0.5f, .clip_norm = 3.0f}));
    Gradients gradients(model);
    // Norm 40 on each rank, of which 3 / sqrt(4) are left: factor 0.0375.
    gradients.fill([](std::size_t, std::size_t) { return 4.0f; });
    session->all_reduce(gradients.pointers());
    EXPECT_FLOAT_EQ(gradients.get(0, 5), 0.15f);
    EXPECT_NEAR(gradients.get(1, 5), 0.15f, 0.001f);
    session->rollback();
    gradients.fill([](std::size_t, std::size_t) { return 0.1f; });  // norm 1, below 1.5
    session->all_reduce(gradients.pointers());
    EXPECT_EQ(gradients.get(0, 5), 0.1f);
    session->commit();
    std::vector<void*> pointers(gradients.pointers().begin(), gradients.pointers().end());
    EXPECT_ERROR(session->start(0, pointers), Errc::unsupported, "clip_norm");
  });
}

TEST(MomentumCorrection, CannotBeAppliedTwice) {
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    const auto open = [&](MomentumCorrection momentum) {
      SessionOptions options;
      options.momentum = momentum;
      const Session session(transport, options);
    };
    EXPECT_ERROR(open({.factor = 0.9f}), Errc::invalid_argument, "optimizer_momentum");
    EXPECT_ERROR(open({.factor = 0.9f, .optimizer_momentum = 0.9}), Errc::invalid_argument, "one on top of the other");
    EXPECT_ERROR(open({.factor = 1.0f, .optimizer_momentum = 0.0}), Errc::invalid_argument, "got 1.0");
    EXPECT_ERROR(open({.factor = -0.1f, .optimizer_momentum = 0.0}), Errc::invalid_argument, "got -0.1");
    EXPECT_ERROR(open({.clip_norm = 1.0f}), Errc::invalid_argument, "need a factor");
    EXPECT_ERROR(open({.factor = 0.9f, .clip_norm = -1.0f, .optimizer_momentum = 0.0}), Errc::invalid_argument,
                 "clip_norm");
    EXPECT_NO_THROW(open({.factor = 0.9f, .optimizer_momentum = 0.0}));
    EXPECT_NO_THROW(open({.optimizer_momentum = 0.9}));  // no correction: the optimizer may do what it likes
  });
}

}  // namespace
}  // namespace tightwire::testing::session_momentum
