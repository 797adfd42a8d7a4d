// A step is a transaction: commit keeps it, rollback leaves no trace of it, and all ranks decide alike.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_step {
namespace {

TEST(Step, ARolledBackStepNeverHappened) {
  const Model model = mixed_model();
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<std::vector<std::byte>> with_detour(3), without(3);
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, in_pieces(algorithm));
      const auto straight = sealed_session(transport, model, in_pieces(algorithm));
      Gradients gradients(model);
      for (std::uint64_t step = 0; step < 3; ++step) {
        reduce(*session, gradients, step);
        session->commit();
      }
      const std::vector<float> before = residuals(*session);
      EXPECT_FALSE(before.empty());
      for (std::uint64_t detour = 0; detour < 3; ++detour) {
        reduce(*session, gradients, 50 + detour);
        if (detour == 1) in_random_order(7)(*session, gradients);  // each parameter a second time
        if (detour == 2) {                                         // some of them once more
          std::vector<void*> pointers;
          for (const ParameterId p : session->bucket_parameters(1)) pointers.push_back(gradients.pointers()[p]);
          session->start(1, pointers).wait();
        }
        session->rollback();
        EXPECT_TRUE(same(residuals(*session), before)) << "detour " << detour;
      }
      EXPECT_EQ(session->steps(), 6u);
      for (std::uint64_t step = 0; step < 5; ++step) {
        if (step < 3) {
          reduce(*straight, gradients, step);
          straight->commit();
          continue;
        }
        const auto keep = [&](Session& which, std::vector<std::byte>& into) {
          reduce(which, gradients, step);
          which.commit();
          const auto bytes = gradients.bytes();
          into.insert(into.end(), bytes.begin(), bytes.end());
        };
        keep(*session, with_detour[static_cast<std::size_t>(transport->rank())]);
        keep(*straight, without[static_cast<std::size_t>(transport->rank())]);
      }
      EXPECT_TRUE(same(residuals(*session), residuals(*straight)));
    });
    EXPECT_TRUE(all_equal(with_detour));
    EXPECT_TRUE(with_detour == without) << to_string(algorithm);
  }
}

TEST(Step, CommitKeepsWhatTheStepLeft) {
  const Model model = mixed_model();
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, in_pieces(Algorithm::two_shot));
    Gradients gradients(model);
    reduce(*session, gradients, 1);
    EXPECT_TRUE(same(residuals(*session), std::vector<float>(residuals(*session).size()))) << "before the commit";
    EXPECT_TRUE(session->commit());
    EXPECT_FALSE(same(residuals(*session), std::vector<float>(residuals(*session).size())));
  });
}

TEST(Step, AParameterReducedTwiceInAStepGoesOnWithItsResidual) {
  // Residuals do not care where a step ends.
  const Model model = mixed_model();
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<std::vector<std::byte>> one_step(3), two_steps(3);
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      for (auto* results : {&one_step, &two_steps}) {
        const auto session = sealed_session(transport, model, in_pieces(algorithm));
        Gradients gradients(model);
        for (std::uint64_t reduction = 0; reduction < 4; ++reduction) {
          reduce(*session, gradients, reduction);
          if (results == &two_steps || reduction == 3) session->commit();
          const auto bytes = gradients.bytes();
          auto& result = (*results)[static_cast<std::size_t>(transport->rank())];
          result.insert(result.end(), bytes.begin(), bytes.end());
        }
        EXPECT_EQ(session->steps(), results == &one_step ? 1u : 4u);
      }
    });
    EXPECT_TRUE(one_step == two_steps) << to_string(algorithm);
  }
}

TEST(Step, WithoutRollbackItIsRefusedAndNothingElseSuffers) {
  const Model model = mixed_model();
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = in_pieces(Algorithm::two_shot);
    const auto twice = sealed_session(transport, model, options);
    options.rollback = false;
    const auto session = sealed_session(transport, model, options);
    EXPECT_EQ(session->residual_bytes() * 2, twice->residual_bytes());
    Gradients gradients(model);
    reduce(*session, gradients, 1);
    EXPECT_ERROR(session->rollback(), Errc::unsupported, "rank " + std::to_string(transport->rank()));
    EXPECT_TRUE(session->commit());
    reduce(*session, gradients, 2);
    EXPECT_TRUE(session->commit());
    options.nonfinite = NonFinitePolicy::skip_step;  // would need what was given up
    EXPECT_ERROR(Session(transport, options), Errc::invalid_argument, "skip_step");
    options.error_feedback = false;
    EXPECT_NO_THROW(Session(transport, options));
  });
}

/// Lets `diverge` end a step differently on rank 1 of 3 and reduces again; every rank must fail, some by the mismatch.
void expect_mismatch(const std::function<void(Session&, bool odd)>& diverge, const std::string& theirs,
                     const std::string& ours) {
  const Model model = {{"w", {500}, ElementType::f32, Int8{}}};
  const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, in_pieces(Algorithm::two_shot));
    Gradients gradients(model);
    reduce(*session, gradients, 1);
    diverge(*session, transport->rank() == 1);
    reduce(*session, gradients, 2);
  });
  int named = 0;
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error == Errc::mismatch || outcome.error == Errc::peer_lost) << outcome.message;
    named += outcome.error == Errc::mismatch ? 1 : 0;
    EXPECT_TRUE(contains(outcome.message, "every rank must commit or roll back each step alike"));
    EXPECT_TRUE(contains(outcome.message, theirs));
    EXPECT_TRUE(contains(outcome.message, ours));
  }
  EXPECT_GE(named, 1);
}

TEST(Step, RanksThatEndAStepDifferentlyAreTold) {
  expect_mismatch([](Session& session, bool odd) { odd ? session.rollback() : static_cast<void>(session.commit()); },
                  "1 steps (1 rolled back", "1 steps (0 rolled back");
  expect_mismatch(
      [](Session& session, bool odd) {
        if (!odd) session.commit();
      },
      "0 steps (0 rolled back", "1 steps (0 rolled back");
  expect_mismatch(
      [](Session& session, bool odd) {
        session.commit();
        if (odd) session.commit();
      },
      "2 steps (0 rolled back", "1 steps (0 rolled back");
}

TEST(Accumulation, IsOneReductionAndOneStep) {
  // Micro-gradients {1, 2} and {3, 6}: the sums 3 and 9 have the mean 6.
  const Model model = {{"w", {64, 32}, ElementType::f32, Int8{}}, {"b", {3}, ElementType::f32, Codec{}}};
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, {});
    Gradients gradients(model);
    const float first = transport->rank() == 0 ? 1.0f : 3.0f, second = transport->rank() == 0 ? 2.0f : 6.0f;
    gradients.fill([&](std::size_t, std::size_t) { return first + second; });
    session->all_reduce(gradients.pointers());
    session->commit();
    EXPECT_EQ(session->steps(), 1u);
    EXPECT_EQ(session->last_step().calls, session->buckets());
    for (const float x : gradients.values(0)) ASSERT_NEAR(x, 6.0f, 6.0f / 127);
    for (const float x : gradients.values(1)) ASSERT_EQ(x, 6.0f);
  });
}

}  // namespace
}  // namespace tightwire::testing::session_step
