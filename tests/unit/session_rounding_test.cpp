// Stochastic rounding in a Session: who asks for it, that it is the same however work is cut, and that it averages out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/local_transport.hpp>
#include <tightwire/session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"

namespace tightwire::testing::session_rounding {
namespace {

constexpr std::int64_t kRows = 64, kColumns = 96;
constexpr std::size_t kCount = kRows * kColumns;

/// What rank 0 holds after `steps` reductions of two parameters; all ranks are compared.
std::vector<float> run(const SessionOptions& options, int ranks, int steps, bool other_order = false) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  local::run(ranks, [&](const std::shared_ptr<Transport>& transport) {
    Session session(transport, options);
    const ParameterId a = session.add("a", {kRows, kColumns});
    const ParameterId b = session.add("b", {kRows, kColumns});
    if (other_order) {
      for (const ParameterId id : {b, a}) session.add_bucket(std::vector<ParameterId>{id});
    }
    session.seal();
    std::vector<float>& result = results[static_cast<std::size_t>(transport->rank())];
    for (int step = 0; step < steps; ++step) {
      std::vector<float> gradient(2 * kCount);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = std::sin(0.37f * static_cast<float>(i) + static_cast<float>(transport->rank()));
      session.all_reduce(std::span<float>(gradient));
      session.commit();
      result.insert(result.end(), gradient.begin(), gradient.end());
    }
  });
  for (const std::vector<float>& result : results)
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
  return results[0];
}

SessionOptions options(const Codec& codec, bool feedback) {
  return {.codec = codec, .error_feedback = feedback, .seed = 9};
}

TEST(SessionRounding, DefaultFollowsTheFeedback) {
  const auto says = [](const Codec& codec, bool feedback) {
    std::string text;
    local::run(1, [&](const std::shared_ptr<Transport>& transport) {
      Session session(transport, options(codec, feedback));
      session.add("a", {kRows, kColumns});
      session.seal();
      text = session.description();
    });
    return text.find("rounded stochastically") != std::string::npos;
  };
  EXPECT_FALSE(says(Int4{}, true));
  EXPECT_TRUE(says(Int4{}, false));
  EXPECT_FALSE(says(Int8{}, false)) << "eight bits are fine enough";
  EXPECT_FALSE(says(Int4{.round = Rounding::nearest}, false));
  EXPECT_TRUE(says(Int8{.round = Rounding::stochastic}, true));
  EXPECT_FALSE(says(Dense{}, false));
}

TEST(SessionRounding, IsTheSameHoweverWorkIsCut) {
  for (const bool feedback : {false, true}) {
    for (const Codec& codec :
         {Codec(Int8{.round = Rounding::stochastic}), Codec(Int3{.round = Rounding::stochastic})}) {
      SessionOptions whole = options(codec, feedback);
      whole.plan.algorithm = Algorithm::two_shot;
      const std::vector<float> expected = run(whole, 3, 3);
      SessionOptions cut = whole;
      cut.plan.share_elements = 256;
      EXPECT_TRUE(run(cut, 3, 3) == expected);
      cut.bucket_bytes = 1;
      EXPECT_TRUE(run(cut, 3, 3) == expected) << "a bucket for each parameter";
      EXPECT_TRUE(run(whole, 3, 3, true) == expected) << "buckets in another order";
      SessionOptions other = whole;
      other.seed = 10;
      EXPECT_FALSE(run(other, 3, 3) == expected) << "the seed changes nothing";
    }
  }
}

TEST(SessionRounding, RanksWithDifferentSeedsAreRefused) {
  std::vector<std::string> messages(2);
  try {
    local::run(2, [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions mine = options(Int4{}, false);
      mine.seed = static_cast<std::uint64_t>(transport->rank());
      Session session(transport, mine);
      session.add("a", {kRows, kColumns});
      session.seal();
    });
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::mismatch);
    EXPECT_NE(std::string(error.what()).find("seed 0"), std::string::npos) << error.what();
  }
}

/// Of equal gradients, 400 steps without feedback: to nearest the error of each step is the same and stays; at random
/// it averages out. The deviation of a mean of 400 is a twentieth of one step's.
TEST(SessionRounding, AveragesOutWithoutFeedback) {
  constexpr int kSteps = 400;
  const auto error_of = [&](Rounding round) {
    const std::vector<float> exact = run({.codec = Codec{}}, 2, 1);
    const std::vector<float> all = run(options(Int4{.round = round}, false), 2, kSteps);
    double squares = 0, power = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      double mean = 0;
      for (std::size_t step = 0; step < kSteps; ++step) mean += double{all[step * exact.size() + i]} / kSteps;
      squares += (mean - double{exact[i]}) * (mean - double{exact[i]});
      power += double{exact[i]} * double{exact[i]};
    }
    return std::sqrt(squares / power);
  };
  const double nearest = error_of(Rounding::nearest), stochastic = error_of(Rounding::automatic);
  std::printf("error of the mean of %d steps: nearest %.4f, stochastic %.4f\n", kSteps, nearest, stochastic);
  EXPECT_LT(stochastic, 0.15 * nearest);
}

/// What random numbers there are go by the reductions of steps that were kept: a step that was rolled back, by the
/// caller or for what was not finite in it, was never there. Nor does anything change where a state is taken up.
TEST(SessionRounding, ARolledBackStepDrawsNothing) {
  struct Case {
    const char* codec;
    const char* inside;  ///< nodes of two, unless null
    ElementType residual;
  };
  const std::vector<Case> cases = {{"int8:round=stochastic", nullptr, ElementType::f32},
                                   {"int8", nullptr, ElementType::bf16},
                                   {"int4:round=stochastic", nullptr, ElementType::bf16},
                                   {"randomk:ratio=0.1", nullptr, ElementType::f32},
                                   {"randomk:ratio=0.1+int8:round=stochastic", nullptr, ElementType::f32},
                                   {"topk:ratio=0.05,sampled", nullptr, ElementType::f32},
                                   {"int4:round=stochastic", "exact", ElementType::f32},
                                   {"int8:round=stochastic", "int8:round=nearest", ElementType::bf16},
                                   {"int8", "int8", ElementType::bf16}};
  for (const Case& c : cases)
    for (const Algorithm algorithm : kAlgorithms) {
      if (c.inside != nullptr && algorithm != Algorithm::two_shot) continue;
      SCOPED_TRACE(std::string(c.codec) + (c.inside != nullptr ? std::string(", inside ") + c.inside : "") + ", " +
                   std::string(to_string(c.residual)) + ", " + to_string(algorithm));
      const Model model = {{"a", {37, 61}, ElementType::f32, parse_codec(c.codec)},
                           {"b", {5000}, ElementType::f32, parse_codec(c.codec)}};
      SessionOptions options = in_pieces(algorithm);
      options.seed = 3;
      options.residual = c.residual;
      options.nonfinite = NonFinitePolicy::skip_step;
      if (c.inside != nullptr) options.hierarchy = Hierarchy::of_equal_nodes(4, 2, parse_codec(c.inside));
      const auto run_with = [&](bool disturbed) {
        std::vector<std::vector<std::byte>> bytes(4);
        run_all(4, [&](const std::shared_ptr<Transport>& transport) {
          auto session = sealed_session(transport, model, options);
          Gradients gradients(model);
          auto& mine = bytes[static_cast<std::size_t>(transport->rank())];
          const auto put = [&](std::span<const std::byte> more) { mine.insert(mine.end(), more.begin(), more.end()); };
          for (std::uint64_t step = 0; step < 6; ++step) {
            if (disturbed && step % 2 == 1) {
              reduce(*session, gradients, 100 + step);
              session->all_reduce(gradients.pointers());
              session->rollback();
            }
            if (disturbed && step == 2) {
              gradients.fill_bell(7);
              if (transport->rank() == 3) gradients.set(1, 77, std::nanf(""));
              session->all_reduce(gradients.pointers());
              EXPECT_FALSE(session->commit());
            }
            if (disturbed && step == 4) {
              const std::vector<std::byte> state = session->save();
              session = sealed_session(transport, model, options);
              session->restore(state);
            }
            reduce(*session, gradients, step);
            EXPECT_TRUE(session->commit());
            put(gradients.bytes());
          }
          const std::vector<float> left = residuals(*session);
          put(std::as_bytes(std::span(left)));
        });
        return bytes;
      };
      EXPECT_TRUE(run_with(true) == run_with(false));
    }
}

}  // namespace
}  // namespace tightwire::testing::session_rounding
