// Ranks that disagree get an error on every rank that names both values, at the first exchange.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/small_model.hpp"

namespace tightwire::testing::session_disagreement {
namespace {

struct Disagreement {
  const char* what;
  std::function<void(Model&, SessionOptions&)> change;
  const char* here;   ///< what the ranks that agree have
  const char* there;  ///< what the odd one has
};

TEST(Disagreement, IsAnErrorOnEveryRankThatNamesBothValues) {
  const std::vector<Disagreement> cases = {
      {"count", [](Model& m, auto&) { m[1].shape = {998}; }, "\"second\" [1000]", "\"second\" [998]"},
      {"much larger", [](Model& m, auto&) { m[1].shape = {100'000}; }, "[1000]", "[100000]"},
      {"shape",
       [](Model& m, auto&) {
         m[0].shape = {30, 40};
       },
       "[40,30]", "[30,40]"},
      {"rank of shape", [](Model& m, auto&) { m[0].shape = {1200}; }, "[40,30]", "[1200]"},
      {"name", [](Model& m, auto&) { m[2].name = "3rd"; }, "\"third\"", "\"3rd\""},
      {"type", [](Model& m, auto&) { m[2].type = ElementType::f16; }, "bf16 exact", "fp16 exact"},
      {"codec", [](Model& m, auto&) { m[1].codec = Int8{}; }, "int4:block=64", "int8:block=256"},
      {"block", [](Model& m, auto&) { m[0].codec = Int8{.block = 128}; }, "block=256", "block=128"},
      {"priority", [](Model& m, auto&) { m[2].priority = 4; }, "bf16 exact", "bf16 priority 4 exact"},
      {"order", [](Model& m, auto&) { std::swap(m[0], m[1]); }, "parameter 0 \"first\"", "parameter 0 \"second\""},
      {"one less", [](Model& m, auto&) { m.pop_back(); }, "parameter 2 \"third\"", "bucket 0 of parameters 0 1"},
      {"one more",
       [](Model& m, auto&) {
         m.push_back({"fourth", {5}, ElementType::f32, Codec{}});
       },
       "bucket 0", "parameter 3 \"fourth\" [5] fp32 exact"},
      {"none at all", [](Model& m, auto&) { m.clear(); }, "parameter 0 \"first\"", "nothing more"},
      {"operation", [](Model&, auto& o) { o.average = false; }, "operation mean", "operation sum"},
      {"feedback", [](Model&, auto& o) { o.error_feedback = false; }, "error feedback on", "error feedback off"},
      {"rollback", [](Model&, auto& o) { o.rollback = false; }, "rollback on", "rollback off"},
      {"seed", [](Model&, auto& o) { o.seed = 17; }, "seed 0", "seed 17"},
      {"residuals", [](Model&, auto& o) { o.residual = ElementType::bf16; }, "error feedback on",
       "error feedback on, residuals in bf16"},
      {"momentum",
       [](Model&, auto& o) {
         o.momentum.factor = 0.9f;
         o.momentum.optimizer_momentum = 0;
       },
       "seed 0", "momentum correction 0.9"},
      {"policy", [](Model&, auto& o) { o.nonfinite = NonFinitePolicy::error; }, "policy propagate", "policy error"},
      {"algorithm", [](Model&, auto& o) { o.plan.algorithm = Algorithm::one_shot; }, "two_shot", "one_shot"},
      {"share", [](Model&, auto& o) { o.plan.share_elements = 1 << 17; }, "share automatic", "share 131072"},
      {"buckets", [](Model&, auto& o) { o.bucket_bytes = 6000; },
       "bucket 0 of parameters 0 1 2:", "bucket 0 of parameters 0:"},
  };
  for (const Disagreement& c : cases)
    for (const int odd : {0, 2}) {
      SCOPED_TRACE(std::string(c.what) + " on rank " + std::to_string(odd));
      const TimePoint began = Clock::now();
      const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
        Model model = small_model();
        SessionOptions options = two_shot();
        if (transport->rank() == odd) c.change(model, options);
        const auto session = open_session(transport, model, options);
        try {
          session->seal();
        } catch (const Error& error) {
          EXPECT_ERROR(session->seal(), error.code(), error.what());  // closed: the same error from every later call
          EXPECT_ERROR(session->all_reduce(std::vector<void*>{}), error.code(), error.what());
          EXPECT_ERROR(session->commit(), error.code(), error.what());
          throw;
        }
      });
      EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
      for (const Outcome& outcome : outcomes) {
        EXPECT_EQ(outcome.error, Errc::mismatch);
        EXPECT_TRUE(contains(outcome.message, c.here));
        EXPECT_TRUE(contains(outcome.message, c.there));
        EXPECT_TRUE(contains(outcome.message, "rank " + std::to_string(odd)));
      }
    }
}

/// It knows before it has said anything. The others hear of it all the same, at once.
TEST(Disagreement, ARankThatCannotPlanIsNamedByAllOthers) {
  struct Case {
    std::function<void(Model&, SessionOptions&)> change;
    Errc error;
    const char* why;
  };
  const std::vector<Case> cases = {
      {[](Model& m, auto& o) {
         m[1].codec = TopK{.ratio = 0.1};
         o.error_feedback = false;
       },
       Errc::invalid_argument, "what is not sent would be lost"},
      {[](Model&, auto& o) {
         o.hierarchy = {.node_of_rank = {0, 1}};
       },
       Errc::invalid_argument, "the nodes of 2 ranks, and there are 3"},
      {[](Model&, auto& o) { o.hierarchy = Hierarchy::of_equal_nodes(3, 1, parse_codec("int4:round=stochastic")); },
       Errc::unsupported, "would round stochastically"},
      {[](Model& m, auto& o) {
         m[0].codec = PowerSgd{.rank = 2};
         o.residual = ElementType::bf16;
       },
       Errc::unsupported, "whose residuals are fp32"},
  };
  for (const Case& c : cases)
    for (const int odd : {0, 2}) {
      SCOPED_TRACE(std::string(c.why) + " on rank " + std::to_string(odd));
      const TimePoint began = Clock::now();
      const auto transports = local::make(3);
      const auto outcomes = run_each(transports, [&](const std::shared_ptr<Transport>& transport) {
        Model model = small_model();
        SessionOptions options = two_shot();
        if (transport->rank() == odd) c.change(model, options);
        sealed_session(transport, model, options);
      });
      EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
      for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
        const bool own = static_cast<int>(rank) == odd;
        EXPECT_EQ(outcomes[rank].error, own ? c.error : Errc::mismatch) << outcomes[rank].message;
        EXPECT_TRUE(contains(outcomes[rank].message, c.why));
        if (own) continue;
        EXPECT_TRUE(contains(outcomes[rank].message, "rank " + std::to_string(odd) + " has cannot plan: "));
      }
      run_all(transports, [](const std::shared_ptr<Transport>& transport) {
        sealed_session(transport, small_model(), two_shot());
      });
    }
}

TEST(Disagreement, TheTransportServesTheNextSessionThatAgrees) {
  run_all(3, [](const std::shared_ptr<Transport>& transport) {
    Model model = small_model();
    if (transport->rank() == 1) model[0].shape = {1};
    EXPECT_ERROR(sealed_session(transport, model), Errc::mismatch, "first");
    const auto session = sealed_session(transport, small_model());
    const Model right = small_model();
    Gradients gradients(right);
    gradients.fill_bell(1);
    session->all_reduce(gradients.pointers());
    EXPECT_TRUE(session->commit());
  });
}

}  // namespace
}  // namespace tightwire::testing::session_disagreement
