#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/testing/calls.hpp>

#include "unit/support/builtin_subjects.hpp"

// How large the error of the built-in codecs is: by themselves, against the alternative at equal bits, in a sum of many
// ranks, and over many steps with and without error feedback.

namespace tightwire::testing {
namespace {

/// NMSE on 2^20 elements. The limits are what algorithms known from the literature reach at these settings, and three
/// percent for the rounding of the step.
TEST(CodecError, OnFourDistributions) {
  std::printf("%-8s %9s", "NMSE", "bits");
  for (const Distribution distribution : kDistributions)
    std::printf(" %13s", std::string(to_string(distribution)).c_str());
  std::printf("\n");
  for (const Subject& codec : builtin_subjects()) {
    const auto coder = codec.coder();
    const std::size_t count = sample(Distribution::gaussian).size();
    const double bits = 8.0 * static_cast<double>(coder->wire_bytes(count)) / static_cast<double>(count);
    std::printf("%-8s %9.4f", codec.name.c_str(), bits);
    std::vector<double> errors;
    for (const Distribution distribution : kDistributions) {
      errors.push_back(nmse(sample(distribution), round_trip(*coder, sample(distribution))));
      std::printf(" %13.3g", errors.back());
    }
    std::printf("\n");
    if (codec.name == "int8") {
      EXPECT_DOUBLE_EQ(bits, 8.0625);
      EXPECT_LT(errors[0], 5.05e-5);
      EXPECT_LT(errors[1], 1.06e-4);
      EXPECT_LT(errors[2], 3.1e-4);
      EXPECT_LT(errors[3], 1.2e-3);
    }
    if (codec.name == "int4") {
      EXPECT_DOUBLE_EQ(bits, 4.25);
      EXPECT_LT(errors[0], 9.3e-3);
      EXPECT_LT(errors[1], 1.6e-2);
      EXPECT_LT(errors[2], 2.7e-2);
      EXPECT_LT(errors[3], 6.0e-3);
    }
  }
}

/// What peers reach at equal bits, on the same distributions (docs/codecs.md, "Beside the reference figures"): none of
/// ours is worse, but for three percent, since samples differ. Infinite: the survey has no figure. int8
/// and int4 are held above.
TEST(CodecError, NoneIsWorseThanPeersAtEqualBits) {
  struct Peer {
    const char* ours;
    double bits, nmse[4];
  };
  for (const Peer& peer : {
           Peer{"int8-affine:block=512", 8.125, {4.8e-5, INFINITY, 2.5e-4, 6.8e-4}},  // CGX
           Peer{"fp8-e4m3", 8.25, {6.6e-4, INFINITY, 5.0e-4, 7.6e-5}},                // torchft, ColossalAI
           Peer{"nvfp4", 4.52, {9.1e-3, 8.6e-3, 8.2e-3, 2.4e-3}},
           Peer{"hadamard:32+int4:block=32", 4.5, {7.4e-3, 7.0e-3, 6.2e-3, 3.7e-3}},  // SDP4Bit
           Peer{"hadamard:4096+lloyd4", 4.04, {9.6e-3, 9.6e-3, 9.6e-3, 9.6e-3}},      // EDEN
           Peer{"hadamard:4096+lloyd1", 1.04, {0.363, 0.363, 0.363, 0.363}},          // EDEN, least error
           Peer{"hadamard:4096+eden1", 1.04, {0.570, 0.570, 0.570, 0.570}},           // EDEN, unbiased
       }) {
    const auto coder = parse_codec(peer.ours).coder(ElementType::f32);
    for (std::size_t d = 0; d < kDistributions.size(); ++d) {
      const std::vector<float>& x = sample(kDistributions[d]);
      EXPECT_LE(nmse(x, round_trip(*coder, x)), 1.03 * peer.nmse[d])
          << peer.ours << ", " << to_string(kDistributions[d]);
      EXPECT_LE(8.0 * static_cast<double>(coder->wire_bytes(x.size())), peer.bits * static_cast<double>(x.size()))
          << peer.ours;
    }
  }
}

/// Symmetric 4-bit integers in [-7, 7] with an exact step: what Int4 is said to beat by a fifth.
std::vector<float> symmetric_int4(const std::vector<float>& x, std::size_t block) {
  std::vector<float> decoded(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += block) {
    float largest = 0;
    for (std::size_t i = begin; i < begin + block; ++i) largest = std::max(largest, std::abs(x[i]));
    const float step = largest / 7;
    for (std::size_t i = begin; i < begin + block; ++i) decoded[i] = step * std::nearbyint(x[i] / step);
  }
  return decoded;
}

/// With rare outliers little of it is left, since beside one all else rounds to 0 in either form.
TEST(CodecError, Int4BeatsTheSymmetricFormAtEqualBits) {
  const HostCoder<Int4> coder;
  for (const Distribution distribution : kDistributions) {
    const std::vector<float>& x = sample(distribution);
    const double ratio = nmse(x, round_trip(coder, x)) / nmse(x, symmetric_int4(x, coder.block()));
    EXPECT_LT(ratio, distribution == Distribution::outliers ? 0.95 : 0.8) << to_string(distribution);
  }
}

/// Rounding to nearest: an error of step^2 / 12 on average, and no bias. Five standard deviations either way, so that a
/// correct codec fails once in a million seeds.
TEST(CodecError, RoundingIsUnbiased) {
  const HostCoder<Int8> coder;
  const std::vector<float>& x = sample(Distribution::gaussian);
  const std::vector<float> decoded = round_trip(coder, x);
  const std::vector<float> largest = largest_per_block(x, coder.block());
  double bias = 0, square = 0, expected = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = static_cast<double>(decoded[i]) - static_cast<double>(x[i]);
    const double step = std::abs(static_cast<double>(largest[i / coder.block()])) / 127;
    bias += error;
    square += error * error;
    expected += step * step / 12;
  }
  EXPECT_NEAR(square / expected, 1, 0.01);
  EXPECT_LT(std::abs(bias), 5 * std::sqrt(expected));
}

/// All the state of one slice among ranks: the two stages of a two-shot all-reduce.
class Ranks {
 public:
  Ranks(const Coder& coder, std::size_t ranks, std::size_t count, bool sender_feedback, bool owner_feedback)
      : coder_(coder),
        sender_feedback_(sender_feedback),
        owner_feedback_(owner_feedback),
        senders_(ranks, std::vector<float>(count, 0.0f)),
        owner_(count, 0.0f) {}

  std::vector<float> mean(std::vector<std::vector<float>> gradients) {
    CombineInput input;
    input.own = 0;
    input.divisor = static_cast<float>(senders_.size());
    std::vector<std::vector<std::byte>> wires(senders_.size());
    for (std::size_t rank = 1; rank < senders_.size(); ++rank) {
      EncodeOutput encoded =
          encode(coder_, ElementType::f32, gradients[rank], residual(senders_[rank], sender_feedback_));
      wires[rank] = std::move(encoded.wire);
      if (sender_feedback_) senders_[rank] = std::move(encoded.residual);
    }
    input.contributions = std::move(gradients);
    input.sender = residual(senders_[0], sender_feedback_);
    input.owner = residual(owner_, owner_feedback_);
    CombineOutput output = combine(coder_, input, wires);
    if (sender_feedback_) senders_[0] = std::move(output.sender);
    if (owner_feedback_) owner_ = std::move(output.owner);
    return output.out;
  }

 private:
  static std::optional<std::vector<float>> residual(const std::vector<float>& values, bool wanted) {
    return wanted ? std::optional(values) : std::nullopt;
  }

  const Coder& coder_;
  bool sender_feedback_, owner_feedback_;
  std::vector<std::vector<float>> senders_;
  std::vector<float> owner_;
};

/// Two encodings whatever the number of ranks: the error of a mean does not grow with it.
TEST(CodecError, OfAMeanDoesNotGrowWithTheNumberOfRanks) {
  const HostCoder<Int4> coder;
  constexpr std::size_t kCount = 64 * 256;
  for (const std::size_t ranks : {2u, 4u, 8u, 16u}) {
    std::vector<std::vector<float>> gradients;
    std::vector<float> exact(kCount, 0.0f);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      gradients.push_back(Random(100 + rank).gaussian(kCount));
      exact = sum(exact, gradients.back());
    }
    for (float& x : exact) x /= static_cast<float>(ranks);
    const double error = nmse(exact, Ranks(coder, ranks, kCount, false, false).mean(gradients));
    EXPECT_NEAR(error, 2 * 9.04e-3, 0.1 * 2 * 9.04e-3) << ranks << " ranks";
  }
}

/// Relative error of all updates together after each of `steps` steps: what a parameter has drifted from where exact
/// sums would have taken it.
std::vector<double> cumulative_errors(const Coder& coder, int steps, bool sender_feedback, bool owner_feedback) {
  constexpr std::size_t kRanks = 4, kCount = 64 * 64;
  Ranks all(coder, kRanks, kCount, sender_feedback, owner_feedback);
  std::vector<std::vector<float>> tendency;
  for (std::size_t rank = 0; rank < kRanks; ++rank) tendency.push_back(Random(rank + 1).gaussian(kCount));
  std::vector<double> exact(kCount, 0.0), sent(kCount, 0.0), errors;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<float>> gradients;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> noise =
          Random(1000 + kRanks * static_cast<std::size_t>(step) + rank).gaussian(kCount, 0.1);
      gradients.push_back(sum(tendency[rank], noise));
      for (std::size_t i = 0; i < kCount; ++i) exact[i] += static_cast<double>(gradients[rank][i]) / kRanks;
    }
    const std::vector<float> mean = all.mean(std::move(gradients));
    double error = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      sent[i] += static_cast<double>(mean[i]);
      error += (sent[i] - exact[i]) * (sent[i] - exact[i]);
    }
    errors.push_back(std::sqrt(error / kCount));
  }
  return errors;
}

/// With feedback at both stages the drift stays below the error of a step or two for ever. Without, it grows, and one
/// stage alone does not cure it.
TEST(CodecError, FeedbackAtBothStagesStopsTheDrift) {
  constexpr int kSteps = 200;
  const HostCoder<Int8> int8;
  const HostCoder<Int4> int4;
  for (const Coder* coder : {static_cast<const Coder*>(&int8), static_cast<const Coder*>(&int4)}) {
    const std::vector<double> both = cumulative_errors(*coder, kSteps, true, true);
    const std::vector<double> none = cumulative_errors(*coder, kSteps, false, false);
    const std::vector<double> sender = cumulative_errors(*coder, kSteps, true, false);
    const std::vector<double> owner = cumulative_errors(*coder, kSteps, false, true);
    std::printf("%s: drift after %d steps: feedback at both stages %.3g, sender %.3g, owner %.3g, none %.3g\n",
                coder->spec().c_str(), kSteps, both.back(), sender.back(), owner.back(), none.back());
    EXPECT_LT(both.back(), 1.5 * both[kSteps / 4]) << "the drift grows";
    EXPECT_LT(both.back(), 2.5 * none.front()) << "more than a step's error or two";
    EXPECT_GT(none.back(), 10 * both.back());
    EXPECT_GT(sender.back(), 4 * both.back());
    EXPECT_GT(owner.back(), 4 * both.back());
  }
}

}  // namespace
}  // namespace tightwire::testing
