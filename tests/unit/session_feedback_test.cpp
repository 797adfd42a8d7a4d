// Nothing is lost: what a codec drops at the sender and at the owner is in a residual, and comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"

namespace tightwire::testing::session_feedback {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::two_shot, Algorithm::one_shot};

/// Lossless for 16-bit buffers is left out: there the sum is rounded to the buffer's type once, as in any all-reduce.
Model lossy_model() {
  return {{"8", {700}, ElementType::f32, Int8{.block = 64}},
          {"4", {10, 61}, ElementType::f32, Int4{}},
          {"8 wide", {300}, ElementType::f32, Int8{}},
          {"bf16 4", {301}, ElementType::bf16, Int4{.block = 32}},
          {"fp16 8", {7, 43}, ElementType::f16, Int8{.block = 32}},
          {"bf16 as fp16", {99}, ElementType::bf16, Fp16{}},
          {"as bf16", {130}, ElementType::f32, Bf16{}},
          {"exact", {77}, ElementType::f32, Codec{}}};
}

/// All that goes into the balance of one parameter in one step.
struct Balance {
  std::vector<std::vector<float>> gradients, senders;  ///< [rank][element]; residuals are those after the step
  std::vector<float> owner, out;
};
using Ledger = std::vector<std::vector<Balance>>;  ///< [step][parameter]

/// The owner residuals of this rank, put where their elements belong.
void collect_owner(const Session& session, std::vector<Balance>& step) {
  for (BucketId id = 0; id < session.buckets(); ++id) {
    const BucketPlan& plan = session.bucket_plan(id);
    if (plan.algorithm != Algorithm::two_shot) continue;
    const auto residual = session.owner_residual(id);
    for (const Chunk& chunk : plan.chunks)
      for (const Slice& slice : chunk.shares[static_cast<std::size_t>(session.rank())].slices) {
        const ParameterId p = session.bucket_parameters(id)[slice.parameter];
        if (session.sender_residual(p).empty()) continue;  // lossless, or no feedback
        std::copy_n(residual.begin() + static_cast<std::ptrdiff_t>(slice.error_at), slice.count,
                    step[p].owner.begin() + static_cast<std::ptrdiff_t>(slice.begin));
      }
  }
}

Ledger run(const Model& model, int ranks, const SessionOptions& options, int steps, float bias = 0) {
  Ledger ledger(static_cast<std::size_t>(steps), std::vector<Balance>(model.size()));
  for (auto& step : ledger)
    for (std::size_t p = 0; p < model.size(); ++p) {
      step[p].gradients.resize(static_cast<std::size_t>(ranks));
      step[p].senders.assign(static_cast<std::size_t>(ranks), std::vector<float>(model[p].count()));
      step[p].owner.resize(model[p].count());
    }
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    FastRandom random(rank + 1);
    for (auto& step : ledger) {
      gradients.fill([&](std::size_t, std::size_t i) {
        return bias == 0.0f ? random.bell() : bias * static_cast<float>(i % 13) + 0.01f * random.bell();
      });
      for (std::size_t p = 0; p < model.size(); ++p) step[p].gradients[rank] = gradients.values(p);
      session->all_reduce(gradients.pointers());
      session->commit();
      for (std::size_t p = 0; p < model.size(); ++p) {
        const auto sender = session->sender_residual(p);
        std::copy(sender.begin(), sender.end(), step[p].senders[rank].begin());
        if (rank == 0) step[p].out = gradients.values(p);
      }
      collect_owner(*session, step);
    }
  });
  return ledger;
}

/// mean (or sum) over ranks of (gradient + old residual) + old owner residual = out + the same of the new residuals.
class Conservation {
 public:
  Conservation(const Model& model, int ranks, const SessionOptions& options) : model_(model), ranks_(ranks) {
    divisor_ = options.average ? ranks : 1;
    one_shot_ = options.plan.algorithm == Algorithm::one_shot;
  }

  /// Largest violation of the law in units of the bound, over elements and steps; and that of the sum over all steps.
  ///
  /// The bound: every rounding is at most 2^-24 of a value that is at most `all`, the sum of the magnitudes of
  /// everything in the balance. There are W additions of a residual and W differences (together at most two of `all`),
  /// W-1 additions of the sum, the division, the addition of the owner's residual and its difference: W + 4. one_shot
  /// rounds the sum to a 16-bit buffer without keeping the difference, like any all-reduce: half a unit of its last
  /// place.
  double worst(const Ledger& ledger, std::size_t p) const {
    double worst = 0;
    for (std::size_t i = 0; i < model_[p].count(); ++i) {
      double drift = 0, drift_bound = 0;
      for (std::size_t t = 0; t < ledger.size(); ++t) {
        const Balance& now = ledger[t][p];
        const Balance* before = t == 0 ? nullptr : &ledger[t - 1][p];
        double in = before ? before->owner[i] : 0.0, out = static_cast<double>(now.out[i]) + now.owner[i];
        double all = std::abs(in) + std::abs(now.out[i]) + std::abs(now.owner[i]);
        for (std::size_t r = 0; r < now.gradients.size(); ++r) {
          const double gradient = now.gradients[r][i], old = before ? before->senders[r][i] : 0.0f;
          in += (gradient + old) / divisor_;
          out += static_cast<double>(now.senders[r][i]) / divisor_;
          all += (std::abs(gradient) + std::abs(old) + std::abs(now.senders[r][i])) / divisor_;
        }
        const double bound = (ranks_ + 4) * 0x1p-24 * all + buffer_rounding(p, now.out[i]) + 0x1p-149;
        drift += in - out;
        drift_bound += bound;
        worst = std::max({worst, std::abs(in - out) / bound, std::abs(drift) / drift_bound});
      }
    }
    return worst;
  }

 private:
  double buffer_rounding(std::size_t p, float out) const {
    if (!one_shot_ || model_[p].type == ElementType::f32) return 0;
    return std::abs(static_cast<double>(out)) * (model_[p].type == ElementType::bf16 ? 0x1p-8 : 0x1p-11) + 0x1p-25;
  }

  const Model& model_;
  int ranks_;
  double divisor_;
  bool one_shot_;
};

TEST(Feedback, NothingIsLostIn100Steps) {
  const Model model = lossy_model();
  for (const Algorithm algorithm : kAlgorithms)
    for (const bool average : {true, false})
      for (const int ranks : {1, 2, 3, 5}) {
        SessionOptions options;
        options.average = average;
        options.rollback = ranks != 3;
        options.plan.algorithm = algorithm;
        options.plan.share_elements = 200;
        const Ledger ledger = run(model, ranks, options, 100);
        const Conservation law(model, ranks, options);
        for (std::size_t p = 0; p < model.size(); ++p)
          EXPECT_LE(law.worst(ledger, p), 1.0)
              << model[p].name << ", " << to_string(algorithm) << (average ? ", mean of " : ", sum of ") << ranks;
      }
}

TEST(Feedback, TheLawFailsWithoutFeedback) {
  // The control: the test above would notice.
  const Model model = lossy_model();
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  options.error_feedback = false;
  const Ledger ledger = run(model, 3, options, 20);
  const Conservation law(model, 3, options);
  for (std::size_t p = 0; p < model.size(); ++p) {
    if (model[p].name == "exact")
      EXPECT_LE(law.worst(ledger, p), 1.0);
    else
      EXPECT_GT(law.worst(ledger, p), 100.0) << model[p].name;
  }
}

TEST(Feedback, BothStagesAreCounted) {
  // Leaving either kind of residual out of the balance breaks it, so both are really used.
  const Model model = {{"8", {700}, ElementType::f32, Int8{}}};
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  const Conservation law(model, 3, options);
  const Ledger whole = run(model, 3, options, 10);
  EXPECT_LE(law.worst(whole, 0), 1.0);
  Ledger without_owner = whole, without_sender = whole;
  for (auto& step : without_owner) std::fill(step[0].owner.begin(), step[0].owner.end(), 0.0f);
  for (auto& step : without_sender) std::fill(step[0].senders[1].begin(), step[0].senders[1].end(), 0.0f);
  EXPECT_GT(law.worst(without_owner, 0), 100.0);
  EXPECT_GT(law.worst(without_sender, 0), 100.0);
}

/// Root of the mean square of (sum of outputs - sum of true means), per parameter.
double cumulative_error(const Ledger& ledger, std::size_t p) {
  double square = 0;
  const std::size_t count = ledger[0][p].out.size();
  for (std::size_t i = 0; i < count; ++i) {
    double error = 0;
    for (const auto& step : ledger) {
      error += static_cast<double>(step[p].out[i]);
      for (const auto& gradient : step[p].gradients)
        error -= static_cast<double>(gradient[i]) / static_cast<double>(step[p].gradients.size());
    }
    square += error * error;
  }
  return std::sqrt(square / static_cast<double>(count));
}

TEST(Feedback, KeepsTheCumulativeErrorOfInt4Small) {
  const Int4 int4{.round = Rounding::nearest};
  const Model model = {{"w", {1000}, ElementType::f32, int4}, {"h", {1000}, ElementType::bf16, int4}};
  for (const Algorithm algorithm : kAlgorithms) {
    SessionOptions options;
    options.plan.algorithm = algorithm;
    const Ledger with = run(model, 4, options, 100, 0.05f), shorter = run(model, 4, options, 10, 0.05f);
    options.error_feedback = false;
    const Ledger without = run(model, 4, options, 100, 0.05f);
    EXPECT_LT(20 * cumulative_error(with, 0), cumulative_error(without, 0)) << to_string(algorithm);
    EXPECT_LT(5 * cumulative_error(with, 1), cumulative_error(without, 1)) << to_string(algorithm);
    // It does not grow with the number of steps: it is one residual, not a sum of them.
    EXPECT_LT(cumulative_error(with, 0), 2 * cumulative_error(shorter, 0)) << to_string(algorithm);
  }
}

TEST(Feedback, ChangesTheSecondStepAndNotTheFirst) {
  const Model model = {{"w", {1000}, ElementType::f32, Int8{}}};
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<std::vector<float>> on, off;
    for (auto* outputs : {&on, &off}) {
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        SessionOptions options;
        options.plan.algorithm = algorithm;
        options.error_feedback = outputs == &on;
        const auto session = sealed_session(transport, model, options);
        EXPECT_EQ(session->residual_bytes() > 0, options.error_feedback);
        for (int step = 0; step < 2; ++step) {
          Gradients gradients(model);
          gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
          session->all_reduce(gradients.pointers());
          session->commit();
          if (transport->rank() == 0) outputs->push_back(gradients.values(0));
        }
      });
    }
    EXPECT_EQ(on[0], off[0]);
    EXPECT_EQ(off[0], off[1]);
    EXPECT_NE(on[0], on[1]);
  }
}

TEST(Feedback, OneRankAlone) {
  const Model model = lossy_model();
  for (const Algorithm algorithm : kAlgorithms)
    run_all(1, [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options;
      options.plan.algorithm = algorithm;
      const auto session = sealed_session(transport, model, options);
      Gradients before(model), gradients(model);
      before.fill_bell(1);
      gradients.fill_bell(1);
      session->all_reduce(gradients.pointers());
      EXPECT_TRUE(session->commit());
      EXPECT_EQ(session->last_step().sent_bytes, 0u);
      EXPECT_EQ(session->last_step().received_bytes, 0u);
      for (std::size_t p = 0; p < model.size(); ++p)
        for (std::size_t i = 0; i < model[p].count(); ++i) {
          const float tolerance = model[p].name == "exact" ? 0.0f : 0.6f;  // two encodings with 4 bits of about +-3
          ASSERT_NEAR(gradients.get(p, i), before.get(p, i), tolerance) << model[p].name;
        }
    });
}

TEST(Feedback, ZeroStaysZeroNextToLargeValues) {
  // Rows that no rank has a gradient for must not begin to move.
  const Model model = {{"8", {512}, ElementType::f32, Int8{}}, {"4", {512}, ElementType::bf16, Int4{}}};
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, {});
    Gradients gradients(model);
    FastRandom random(static_cast<std::uint64_t>(transport->rank()) + 1);
    for (int step = 0; step < 50; ++step) {
      gradients.fill([&](std::size_t, std::size_t i) { return i % 3 == 0 ? 0.0f : 100.0f * random.bell(); });
      session->all_reduce(gradients.pointers());
      session->commit();
      for (std::size_t p = 0; p < 2; ++p)
        for (std::size_t i = 0; i < 512; i += 3) {
          ASSERT_EQ(gradients.get(p, i), 0.0f);
          ASSERT_EQ(session->sender_residual(p)[i], 0.0f);
        }
    }
  });
}

TEST(ScaledResiduals, AreThoseOfScaledGradients) {
  // Powers of two change no bit but exponents: training in halves with residuals halved is the same training.
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    const Model model = {{"w", {700}, ElementType::f32, Int4{}}};
    const auto plain = sealed_session(transport, model), scaled = sealed_session(transport, model);
    const auto step = [&](Session& session, float unit) {
      Gradients gradients(model);
      gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1 + session.steps() * 10);
      std::vector<float> values = gradients.values(0);
      for (float& value : values) value *= unit;
      session.all_reduce(values);
      EXPECT_ERROR(session.scale_residuals(2.0f), Errc::invalid_argument, "the step committed");
      session.commit();
      for (float& value : values) value /= unit;
      return values;
    };
    EXPECT_EQ(step(*plain, 1.0f), step(*scaled, 1.0f));
    scaled->scale_residuals(0.5f);
    EXPECT_EQ(step(*plain, 1.0f), step(*scaled, 0.5f));
    scaled->scale_residuals(0.0f);
    for (const float left : scaled->sender_residual(0)) EXPECT_EQ(left, 0.0f);
    EXPECT_ERROR(scaled->scale_residuals(std::nanf("")), Errc::invalid_argument, "must be finite");
  });
}

/// Where ranks share what they scale, one that scales otherwise is found out; one for itself may.
TEST(ScaledResiduals, OtherwiseOnOneRankAreFoundWhereResultsWouldDiffer) {
  const Model model = {{"w", {64, 48}, ElementType::f32, Int8{}}};
  SessionOptions flat = in_pieces(Algorithm::two_shot), nodes = flat, momentum = flat;
  nodes.hierarchy = Hierarchy::of_equal_nodes(4, 2, Int8{});
  momentum.momentum.factor = 0.9f;
  momentum.momentum.optimizer_momentum = 0;
  for (const SessionOptions& options : {flat, nodes, momentum})
    for (const bool alike : {true, false}) {
      std::vector<std::vector<std::byte>> bytes(4);
      const auto outcomes = run_each(local::make(4), [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, model, options);
        Gradients gradients(model);
        reduce(*session, gradients, 1);
        session->commit();
        const std::vector<std::byte> state = session->save();
        for (const float factor : {2.0f, 1.0f, 0.5f})
          if (alike || transport->rank() != 2 || factor != 0.5f) session->scale_residuals(factor);
        if (alike) {
          reduce(*session, gradients, 2);
          session->commit();
          if (transport->rank() == 1) session->scale_residuals(1.0f);  // which is nothing
          reduce(*session, gradients, 3);
          session->commit();
          if (transport->rank() == 1) session->scale_residuals(8.0f);
          session->restore(state);  // forgets it
        }
        reduce(*session, gradients, 4);
        bytes[static_cast<std::size_t>(transport->rank())] = gradients.bytes();
      });
      const bool found = !alike && (options.hierarchy || options.momentum);
      bool named = false;
      for (const Outcome& outcome : outcomes) {
        EXPECT_EQ(outcome.error.has_value(), found) << outcome.message;
        named = named || (outcome.error == Errc::mismatch &&
                          outcome.message.find("scaled its residuals otherwise") != std::string::npos);
      }
      EXPECT_EQ(named, found);
      if (found) continue;
      for (const auto& each : bytes) EXPECT_EQ(each, bytes[0]);
    }
}

/// Without rollback there is one copy of a residual, which a reduction under way writes.
TEST(Feedback, TheOnlyCopyIsNotReadWhileItIsWritten) {
  for (const bool rollback : {true, false})
    run_all(1, [&](const std::shared_ptr<Transport>& transport) {
      const Model model = {{"w", {3000}, ElementType::f32, Int4{}}};
      SessionOptions options = in_pieces(Algorithm::two_shot);
      options.rollback = rollback;
      const auto session = sealed_session(transport, model, options);
      Gradients gradients(model);
      gradients.fill_bell(1);
      Handle handle = session->start(0, gradients.pointers());
      if (rollback) {
        EXPECT_EQ(session->sender_residual(0), std::vector<float>(3000));
        EXPECT_EQ(session->owner_residual(0), std::vector<float>(3000));
      } else {
        EXPECT_ERROR(session->sender_residual(0), Errc::invalid_argument, "is under way");
        EXPECT_ERROR(session->owner_residual(0), Errc::invalid_argument, "is under way");
      }
      handle.wait();
      EXPECT_EQ(session->sender_residual(0).size(), 3000u);
      EXPECT_EQ(session->owner_residual(0).size(), 3000u);
      session->commit();
    });
}

}  // namespace
}  // namespace tightwire::testing::session_feedback
