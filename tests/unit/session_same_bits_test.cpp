// Every rank holds the same bytes, and they are those of the definition, whatever the number of ranks, the cuts, the
// order, the delays, the floating point mode and the instruction set.
#include <gtest/gtest.h>

#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/detail/flush_to_zero.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/reference_session.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_same_bits {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::two_shot, Algorithm::one_shot};

SessionOptions with(Algorithm algorithm, std::size_t share_elements = 1 << 16,
                    std::size_t bucket_bytes = std::size_t{25} << 20) {
  SessionOptions options;
  options.plan.algorithm = algorithm;
  options.plan.share_elements = share_elements;
  options.bucket_bytes = bucket_bytes;
  return options;
}

/// What `Steps::run` must give on every rank, from the definition.
std::vector<std::byte> expected(const Steps& steps, int ranks) {
  ReferenceSession reference(steps.model, ranks, steps.options.plan.algorithm == Algorithm::two_shot,
                             steps.options.average, steps.options.error_feedback);
  std::vector<std::byte> bytes;
  for (int step = 0; step < steps.steps; ++step) {
    std::vector<Gradients> inputs(static_cast<std::size_t>(ranks), Gradients(steps.model));
    for (int rank = 0; rank < ranks; ++rank)
      inputs[static_cast<std::size_t>(rank)].fill_wide(Steps::seed(rank, step), steps.exponents);
    Gradients out(steps.model);
    for (std::size_t p = 0; p < steps.model.size(); ++p) {
      std::vector<std::vector<float>> contributions;
      for (const Gradients& input : inputs) contributions.push_back(input.values(p));
      const std::vector<float> values = reference.step(p, contributions);
      for (std::size_t i = 0; i < values.size(); ++i) out.set(p, i, values[i]);
    }
    const std::vector<std::byte> now = out.bytes();
    bytes.insert(bytes.end(), now.begin(), now.end());
  }
  return bytes;
}

TEST(SameBits, MixedModelOnAnyNumberOfRanksAsDefined) {
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 9}) {
      SCOPED_TRACE(std::string(to_string(algorithm)) + " on " + std::to_string(ranks));
      const Steps steps{.options = with(algorithm, 300, 20'000)};
      const auto results = steps.run(ranks);
      EXPECT_TRUE(all_equal(results));
      EXPECT_TRUE(results[0] == expected(steps, ranks));
    }
}

TEST(SameBits, EverySizeAndCodecAsDefined) {
  const std::vector<Codec> codecs = {
      Codec{},           Dense{.block = 32}, Bf16{}, Fp16{}, Int8{}, Int8{.block = 16}, Int8{.block = 64}, Int4{},
      Int4{.block = 16}, Int4{.block = 4096}};
  for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
    Steps steps{.options = with(Algorithm::two_shot, 500), .steps = 2, .exponents = 5};
    steps.model.clear();
    for (const Codec& codec : codecs)
      for (const std::int64_t count : {0, 1, 2, 3, 17, 255, 256, 257, 1500}) {
        std::string name = codec.spec();
        name += " of " + std::to_string(count);
        steps.model.push_back({std::move(name), {count}, type, codec});
      }
    for (const bool average : {true, false})
      for (const int ranks : {2, 3, 4, 7}) {
        SCOPED_TRACE(std::string(to_string(type)) + " on " + std::to_string(ranks) + (average ? ", mean" : ", sum"));
        steps.options.average = average;
        const auto results = steps.run(ranks);
        EXPECT_TRUE(all_equal(results));
        EXPECT_TRUE(results[0] == expected(steps, ranks));
      }
  }
}

TEST(SameBits, WithoutFeedbackAndWithoutRollback) {
  for (const Algorithm algorithm : kAlgorithms) {
    Steps steps{.options = with(algorithm, 300)};
    steps.options.rollback = false;
    const auto in_place = steps.run(3);
    EXPECT_TRUE(all_equal(in_place));
    EXPECT_TRUE(in_place[0] == expected(steps, 3)) << "residuals updated in place";
    steps.options.error_feedback = false;
    const auto without = steps.run(3);
    EXPECT_TRUE(all_equal(without));
    EXPECT_TRUE(without[0] == expected(steps, 3));
    EXPECT_FALSE(without[0] == in_place[0]);
  }
}

TEST(SameBits, CutsChangeNothing) {
  for (const Algorithm algorithm : kAlgorithms) {
    const auto base = Steps{.options = with(algorithm)}.run(4);
    ASSERT_TRUE(all_equal(base));
    for (const std::size_t share : {1u, 16u, 100u, 1000u, 5000u})
      for (const std::size_t bucket : {std::size_t{1}, std::size_t{5000}, std::size_t{1} << 30}) {
        const auto cut = Steps{.options = with(algorithm, share, bucket)}.run(4);
        EXPECT_TRUE(cut == base) << to_string(algorithm) << ", shares of " << share << ", buckets of " << bucket;
      }
  }
}

TEST(SameBits, OneShotIsAnotherResultByDesignWhereCodecsLose) {
  // It encodes once where two_shot encodes twice. `automatic` chooses by the bytes of a bucket, so only with an
  // algorithm that is given do results not depend on how parameters are put into buckets.
  const Model lossy = {{"w", {999}, ElementType::f32, Int8{}}};
  const Model exact = {{"w", {999}, ElementType::f32, Codec{}}, {"b", {333}, ElementType::bf16, Codec{}}};
  const auto run = [](const Model& model, Algorithm algorithm) {
    return Steps{.model = model, .options = with(algorithm)}.run(3)[0];
  };
  EXPECT_FALSE(run(lossy, Algorithm::one_shot) == run(lossy, Algorithm::two_shot));
  EXPECT_TRUE(run(exact, Algorithm::one_shot) == run(exact, Algorithm::two_shot));
  EXPECT_TRUE(run(lossy, Algorithm::automatic) == run(lossy, Algorithm::one_shot));
}

TEST(SameBits, DelaysAndOrdersChangeNothing) {
  for (const Algorithm algorithm : kAlgorithms) {
    const auto base = Steps{.options = with(algorithm, 300, 3000)}.run(4);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const auto late = [seed](int rank) -> FaultyTransport::Script {
        auto random = std::make_shared<FastRandom>(100 * seed + static_cast<std::uint64_t>(rank));
        return [random](const Message&) { return Fault{.delay = std::chrono::microseconds(random->below(400))}; };
      };
      Steps steps{.options = with(algorithm, 300, 3000)};
      steps.reduce = in_random_order(seed);
      EXPECT_TRUE(steps.run(faulty(4, late)) == base) << to_string(algorithm) << ", seed " << seed;
    }
  }
}

TEST(SameBits, FloatingPointModesOfTheCallerChangeNothing) {
  // Magnitudes down to subnormals, where flush-to-zero shows; rounding shows everywhere.
  const auto in_another_mode = [](bool background) {
    return [background](Session& session, Gradients& gradients) {
      const auto reduce = [&] {
        if (background)
          in_random_order(9)(session, gradients);
        else
          session.all_reduce(gradients.pointers());
      };
      if (session.rank() == 1) {
        const detail::FlushToZero mode;
        reduce();
      } else if (session.rank() == 2) {
        std::fesetround(FE_UPWARD);
        reduce();
        EXPECT_EQ(std::fegetround(), FE_UPWARD) << "the caller's mode is the caller's again";
        std::fesetround(FE_TONEAREST);
      } else {
        reduce();
      }
    };
  };
  for (const Algorithm algorithm : kAlgorithms) {
    Steps steps{.options = with(algorithm, 300, 5000), .exponents = 126};
    const auto base = steps.run(4);
    ASSERT_TRUE(all_equal(base));
    steps.reduce = in_another_mode(false);
    EXPECT_TRUE(steps.run(4) == base) << to_string(algorithm);
    steps.reduce = in_another_mode(true);
    EXPECT_TRUE(steps.run(4) == base) << to_string(algorithm) << " in the background";
  }
}

TEST(SameBits, EveryRankAtAnotherInstructionSet) {
  const Steps base{.options = with(Algorithm::two_shot, 300), .steps = 1};
  const auto expected_results = base.run(3);
  std::vector<std::vector<std::byte>> results(3);
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto level = static_cast<host::Level>(transport->rank());
    Model model = base.model;
    const auto at_level = [&]<class C>(C codec) { return Codec(std::make_shared<HostCoder<C>>(codec, level)); };
    for (Tensor& tensor : model) {
      const std::string spec = tensor.codec.coder(tensor.type)->spec();
      const int block = std::stoi(spec.substr(spec.find('=') + 1));
      if (spec.starts_with("int8")) tensor.codec = at_level(Int8{.block = block});
      if (spec.starts_with("int4")) tensor.codec = at_level(Int4{.block = block});
      if (spec.starts_with("dense")) tensor.codec = at_level(Dense{.block = block});
      if (spec.starts_with("bf16")) tensor.codec = at_level(Bf16{.block = block});
      if (spec.starts_with("fp16")) tensor.codec = at_level(Fp16{.block = block});
    }
    if (level > host::supported_level()) GTEST_LOG_(INFO) << "no " << host::to_string(level) << " here";
    if (level > host::supported_level()) model = base.model;
    const auto session = sealed_session(transport, model, base.options);
    Gradients gradients(model);
    gradients.fill_wide(Steps::seed(transport->rank(), 0), base.exponents);
    session->all_reduce(gradients.pointers());
    results[static_cast<std::size_t>(transport->rank())] = gradients.bytes();
  });
  EXPECT_TRUE(results == expected_results);
}

TEST(SameBits, ExactIsTheSumInRankOrder) {
  // From the definition in plain C++, so that an error shared with the reference codec would show.
  const Model model = {{"w", {5003}, ElementType::f32, Codec{}}};
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {2, 3, 4, 5, 8})
      for (const bool average : {false, true}) {
        SessionOptions options = with(algorithm, 400);
        options.average = average;
        std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
        run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
          const auto session = sealed_session(transport, model, options);
          Gradients gradients(model);
          gradients.fill_wide(Steps::seed(transport->rank(), 0), 27);
          session->all_reduce(gradients.pointers());
          results[static_cast<std::size_t>(transport->rank())] = gradients.values(0);
        });
        std::vector<Gradients> inputs(static_cast<std::size_t>(ranks), Gradients(model));
        for (int rank = 0; rank < ranks; ++rank)
          inputs[static_cast<std::size_t>(rank)].fill_wide(Steps::seed(rank, 0), 27);
        for (std::size_t i = 0; i < 5003; ++i) {
          float sum = inputs[0].get(0, i);
          for (std::size_t rank = 1; rank < inputs.size(); ++rank) sum += inputs[rank].get(0, i);
          if (average) sum /= static_cast<float>(ranks);
          for (const auto& result : results)
            ASSERT_EQ(detail::to_bits(result[i]), detail::to_bits(sum)) << "element " << i << " on " << ranks;
        }
      }
}

TEST(SameBits, TinySizesAreExactToo) {
  // In place, fewer elements than ranks, elements that tell who was counted how often.
  for (const Algorithm algorithm : kAlgorithms)
    for (int ranks = 2; ranks <= 9; ++ranks)
      for (const std::int64_t count : {1, 2, 3, 17}) {
        SessionOptions options = with(algorithm, 1);
        options.average = false;
        run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
          const Model model = {{"w", {count}, ElementType::f32, Dense{.block = 16}}};
          const auto session = sealed_session(transport, model, options);
          Gradients gradients(model);
          gradients.fill([&](std::size_t, std::size_t) { return std::ldexp(1.0f, transport->rank()); });
          session->all_reduce(gradients.pointers());
          for (const float x : gradients.values(0)) ASSERT_EQ(x, std::ldexp(1.0f, ranks) - 1.0f);
        });
      }
}

TEST(SameBits, ScalingByAPowerOfTwoScalesTheResult) {
  const Model model = {{"8", {3000}, ElementType::f32, Int8{}}, {"4", {3000}, ElementType::f32, Int4{}}};
  std::vector<std::vector<float>> plain(2), scaled(2);
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    for (auto* results : {&plain, &scaled}) {
      const auto session = sealed_session(transport, model, with(Algorithm::two_shot));
      Gradients gradients(model);
      FastRandom random(Steps::seed(transport->rank(), 0));
      const float factor = results == &plain ? 1.0f : 0x1p-20f;
      gradients.fill([&](std::size_t, std::size_t) { return factor * random.bell(); });
      for (int step = 0; step < 2; ++step) session->all_reduce(gradients.pointers());
      if (transport->rank() == 0)
        for (std::size_t p = 0; p < 2; ++p) (*results)[p] = gradients.values(p);
    }
  });
  for (std::size_t p = 0; p < 2; ++p)
    for (std::size_t i = 0; i < plain[p].size(); ++i)
      ASSERT_EQ(detail::to_bits(scaled[p][i]), detail::to_bits(0x1p-20f * plain[p][i])) << model[p].name << " " << i;
}

}  // namespace
}  // namespace tightwire::testing::session_same_bits
