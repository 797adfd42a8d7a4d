// A Session with residuals in bf16: as defined on any ranks, a transaction, saved and restored, and all that fp32 keeps
// is kept on average.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/one_parameter.hpp"
#include "support/ranks.hpp"
#include "support/reference_session.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_bf16_residual {
namespace {

using State = std::vector<std::byte>;

SessionOptions in_bf16(SessionOptions options) {
  options.residual = ElementType::bf16;
  return options;
}
const Model& blocks() {
  static const Model model = {{"a", {2000}, ElementType::f32, Int8{}},
                              {"b", {37, 61}, ElementType::f32, Int4{}},
                              {"c", {700}, ElementType::bf16, Int4{.block = 32}},
                              {"exact", {65}, ElementType::f32, Codec{}}};
  return model;
}

TEST(SessionBf16Residual, IsAsDefinedOnAnyRanksInAnyCuts) {
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot})
    for (const int ranks : {1, 2, 3}) {
      Steps steps{.model = blocks(), .options = in_bf16(in_pieces(algorithm))};
      const auto results = steps.run(ranks);
      EXPECT_TRUE(all_equal(results));
      ReferenceSession reference(steps.model, ranks, algorithm == Algorithm::two_shot, true, true, ElementType::bf16);
      State expected;
      for (int step = 0; step < steps.steps; ++step) {
        Gradients out(steps.model);
        for (std::size_t p = 0; p < steps.model.size(); ++p) {
          std::vector<std::vector<float>> contributions;
          for (int rank = 0; rank < ranks; ++rank) {
            Gradients input(steps.model);
            input.fill_wide(Steps::seed(rank, step), steps.exponents);
            contributions.push_back(input.values(p));
          }
          const std::vector<float> values = reference.step(p, contributions);
          for (std::size_t i = 0; i < values.size(); ++i) out.set(p, i, values[i]);
        }
        const State now = out.bytes();
        expected.insert(expected.end(), now.begin(), now.end());
      }
      EXPECT_TRUE(results[0] == expected) << to_string(algorithm) << " on " << ranks;
      steps.options.plan.share_elements = 4096;
      EXPECT_TRUE(steps.run(ranks) == results) << "other cuts";
    }
}

TEST(SessionBf16Residual, TakesHalfTheMemoryAndRollsBack) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    const auto wide = sealed_session(transport, blocks(), in_pieces(Algorithm::two_shot));
    const auto half = sealed_session(transport, blocks(), in_bf16(in_pieces(Algorithm::two_shot)));
    EXPECT_LT(half->residual_bytes(), 0.7 * static_cast<double>(wide->residual_bytes()));
    Gradients gradients(blocks());
    reduce(*half, gradients, 1);
    half->commit();
    const std::vector<float> committed = residuals(*half);
    reduce(*half, gradients, 2);
    half->rollback();
    EXPECT_TRUE(same(residuals(*half), committed));
    half->scale_residuals(0.5f);
    for (std::size_t i = 0; i < committed.size(); ++i) ASSERT_EQ(residuals(*half)[i], committed[i] * 0.5f);
    for (const float x : committed) ASSERT_EQ(x, detail::from_bf16(detail::to_bf16(x)));
    EXPECT_NE(half->description().find("error feedback on, residuals in bf16\n"), std::string::npos);
    EXPECT_EQ(wide->description().find("residuals in"), std::string::npos);
  });
}

/// States of ranks after four steps.
std::vector<State> saved(const SessionOptions& options, int ranks) {
  std::vector<State> states(static_cast<std::size_t>(ranks));
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, blocks(), options);
    Gradients gradients(blocks());
    for (std::uint64_t step = 0; step < 4; ++step) {
      reduce(*session, gradients, step);
      session->commit();
    }
    states[static_cast<std::size_t>(transport->rank())] = session->save();
  });
  return states;
}
/// What each rank holds after it took up a state, and two more steps.
std::vector<std::vector<float>> gone_on(const std::vector<State>& states, const SessionOptions& options, int more) {
  std::vector<std::vector<float>> all(states.size());
  run_all(static_cast<int>(states.size()), [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, blocks(), options);
    session->restore(states[me]);
    Gradients gradients(blocks());
    for (int step = 0; step < more; ++step) {
      reduce(*session, gradients, static_cast<std::uint64_t>(4 + step));
      session->commit();
    }
    all[me] = residuals(*session);
  });
  return all;
}

TEST(SessionBf16Residual, IsSavedInItsTypeAndTakenUpInEither) {
  const SessionOptions wide = in_pieces(Algorithm::two_shot), half = in_bf16(wide);
  const std::vector<State> of_wide = saved(wide, 2), of_half = saved(half, 2);
  EXPECT_LT(of_half[0].size(), 0.7 * static_cast<double>(of_wide[0].size()));
  // In its own type: bit for bit what goes on without a break.
  const auto uninterrupted = [&] {
    std::vector<std::vector<float>> all(2);
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, blocks(), half);
      Gradients gradients(blocks());
      for (std::uint64_t step = 0; step < 6; ++step) {
        reduce(*session, gradients, step);
        session->commit();
      }
      all[static_cast<std::size_t>(transport->rank())] = residuals(*session);
    });
    return all;
  };
  EXPECT_EQ(gone_on(of_half, half, 2), uninterrupted());
  // From bf16 to fp32 nothing changes; the other way each is rounded to nearest.
  EXPECT_EQ(gone_on(of_half, wide, 0), gone_on(of_half, half, 0));
  const auto exact = gone_on(of_wide, wide, 0), rounded = gone_on(of_wide, half, 0);
  bool differs = false;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(exact[rank].size(), rounded[rank].size());
    for (std::size_t i = 0; i < exact[rank].size(); ++i) {
      ASSERT_LE(std::abs(exact[rank][i] - rounded[rank][i]), 0x1p-8f * std::abs(exact[rank][i]));
      differs = differs || exact[rank][i] != rounded[rank][i];
    }
  }
  EXPECT_TRUE(differs);
}

TEST(SessionBf16Residual, IsHandedOnToOtherRanks) {
  const SessionOptions half = in_bf16(in_pieces(Algorithm::two_shot));
  const std::vector<State> states = saved(half, 4);
  // The sum over ranks of what contributions lost, and what sums lost, of "a": of means, times ranks.
  const auto pending = [&](int ranks) {
    double all = 0;
    std::vector<double> of_ranks(static_cast<std::size_t>(ranks));
    run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, blocks(), half);
      session->restore(std::vector<std::span<const std::byte>>(states.begin(), states.end()));
      double& mine = of_ranks[static_cast<std::size_t>(transport->rank())];
      for (ParameterId p = 0; p < 3; ++p)
        for (const float x : session->sender_residual(p)) mine += static_cast<double>(x) / ranks;
      for (BucketId id = 0; id < session->buckets(); ++id)
        for (const float x : session->owner_residual(id)) mine += static_cast<double>(x);
    });
    for (const double mine : of_ranks) all += mine;
    return all;
  };
  const double on_four = pending(4);
  EXPECT_GT(std::abs(on_four), 1e-2) << "there was nothing to hand on";
  for (const int ranks : {1, 2, 3}) EXPECT_NEAR(pending(ranks), on_four, 0.02) << ranks;
}

TEST(SessionBf16Residual, AStateOfTheFirstVersionIsOneInFp32) {
  const SessionOptions options = in_pieces(Algorithm::two_shot);
  const std::vector<State> now = saved(options, 1);
  // Without the run, first of all without the type as well, and with the check sum that it then has.
  state::Writer first, second;
  const std::span<const std::byte> bytes(now[0]);
  first.put(SavedState::kFirstMagic);
  second.put(SavedState::kSecondMagic);
  first.put(bytes.subspan(8, 8));
  second.put(bytes.subspan(8, 12));
  for (state::Writer* const each : {&first, &second}) {
    each->put(bytes.subspan(20, 24));
    each->put(bytes.subspan(52, bytes.size() - 60));
  }
  EXPECT_EQ(gone_on({first.finish()}, options, 1), gone_on(now, options, 1));
  EXPECT_EQ(gone_on({second.finish()}, options, 1), gone_on(now, options, 1));
  state::Writer unknown;
  unknown.put(bytes.first(16));
  unknown.put(std::uint32_t{2});
  unknown.put(bytes.subspan(20, bytes.size() - 28));
  const State bad = unknown.finish();
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, blocks(), options);
    EXPECT_ERROR(session->restore(bad), Errc::corrupt, "residuals of type 2");
  });
}

TEST(SessionBf16Residual, IsRefusedByNameWhereItIsNot) {
  run_all(1, [](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = in_bf16({});
    for (const char* spec : {"topk:ratio=0.1", "randomk:ratio=0.1", "powersgd:rank=2"}) {
      Session session(transport, options);
      options.policy.rules = {{.name = "w", .codec = parse_codec(spec)}};
      Session with_rule(transport, options);
      with_rule.add("w", {100, 100});
      EXPECT_ERROR(with_rule.seal(), Errc::unsupported, spec);
    }
    options.policy.rules.clear();
    options.momentum.factor = 0.9f;
    options.momentum.optimizer_momentum = 0;
    EXPECT_ERROR(Session(transport, options), Errc::unsupported, "momentum correction");
    options.momentum = {};
    options.residual = ElementType::f16;
    EXPECT_ERROR(Session(transport, options), Errc::invalid_argument, "not in fp16");
  });
}

/// One of a user's own, which knows of no such residuals.
class OwnCoder final : public Coder {
 public:
  explicit OwnCoder(bool keeps) : keeps_(keeps) {}
  std::string spec() const override { return "own"; }
  std::size_t block() const noexcept override { return int8_.block(); }
  std::size_t wire_bytes(std::size_t count) const noexcept override { return int8_.wire_bytes(count); }
  bool lossless(ElementType type) const noexcept override { return int8_.lossless(type); }
  bool keeps_bf16() const noexcept override { return keeps_; }
  std::uint64_t encode(ElementType type, const Encode& job) const override { return int8_.encode(type, job); }
  NonFinite combine(ElementType type, const Combine& job) const override { return int8_.combine(type, job); }
  void decode(ElementType type, const Decode& job) const override { int8_.decode(type, job); }

 private:
  HostCoder<Int8> int8_;
  bool keeps_;
};

TEST(SessionBf16Residual, ACoderThatDoesNotLookAtItIsRefused) {
  run_all(1, [](const std::shared_ptr<Transport>& transport) {
    for (const bool keeps : {true, false})
      for (const Operation operation : {Operation::all_reduce, Operation::reduce_scatter}) {
        SessionOptions options = in_bf16({});
        options.codec = Codec(std::make_shared<OwnCoder>(keeps));
        Session session(transport, options);
        session.add("w", {100, 100}, ElementType::f32, operation);
        if (!keeps) {
          EXPECT_ERROR(session.seal(), Errc::unsupported, "\"w\" is own, whose residuals are fp32, and not bf16");
          continue;
        }
        session.seal();
        std::vector<float> gradient(10'000, 1.0f);
        session.run(0, gradient.data());
        EXPECT_TRUE(session.commit());
      }
  });
}

/// Norm of (sum of results - sum of gradients) after some steps, over the norm of the sum, on two ranks. Gradients are
/// constant and bell-shaped but for every seventh, which is `small`.
struct Drift {
  double all, of_small;
};
Drift drift(const Codec& codec, SessionOptions options, float small, int steps) {
  const Model model = one_parameter({16, 64}, codec);
  Drift drift{};
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    std::vector<double> sum(1024);
    FastRandom random(5);
    std::vector<float> gradient(1024);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = i % 7 == 0 ? small : random.bell();
    for (int step = 0; step < steps; ++step) {
      std::vector<float> out = gradient;
      session->all_reduce(out);
      session->commit();
      for (std::size_t i = 0; i < out.size(); ++i) sum[i] += static_cast<double>(out[i]);
    }
    if (transport->rank() != 0) return;
    double error = 0, norm = 0, arrived = 0, sent = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double wanted = steps * static_cast<double>(gradient[i]);
      error += (sum[i] - wanted) * (sum[i] - wanted);
      norm += wanted * wanted;
      if (i % 7 == 0) arrived += sum[i], sent += wanted;
    }
    drift = {std::sqrt(error / norm), arrived / sent};
  });
  return drift;
}

TEST(SessionBf16Residual, TheUpdateIsAsNearAsWithFp32) {
  for (const Codec& codec : {Codec(Int8{}), Codec(Int4{}), Codec(Sign{})}) {
    SessionOptions options;
    options.plan.algorithm = Algorithm::two_shot;
    const double wide = drift(codec, options, 0.5f, 300).all, half = drift(codec, in_bf16(options), 0.5f, 300).all;
    options.error_feedback = false;
    EXPECT_LT(half, 1.25 * wide) << codec.spec();
    EXPECT_LT(4 * half, drift(codec, options, 0.5f, 300).all) << codec.spec() << ": without feedback";
  }
}

TEST(SessionBf16Residual, GradientsBelowHalfAUnitOfTheirResidualArriveAllTheSame) {
  // With int4, steps are about 0.4: a residual of 0.1 has units of 2^-11, of which 1e-4 is a fifth. Rounded to nearest,
  // residuals would stay where they are, and none of this would ever arrive.
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  const double arrived = drift(Codec(Int4{}), in_bf16(options), 1e-4f, 8000).of_small;
  EXPECT_GT(arrived, 0.5);
  EXPECT_LT(arrived, 1.5);
}

}  // namespace
}  // namespace tightwire::testing::session_bf16_residual
