// Sessions between processes: the bytes are those of the in-process transport, which are those of the definition
// (unit/session_same_bits_test.cpp), and faults end all ranks with an error that says why.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "ucx_support.hpp"
#include "unit/support/order_of_ends.hpp"
#include "unit/support/steps.hpp"

namespace tightwire::testing::ucx_session_test {
namespace {

class SessionOverUcx : public ::testing::TestWithParam<Network> {
 protected:
  static std::shared_ptr<Transport> open(const Rendezvous& rendezvous) { return GetParam().open(rendezvous); }

  /// What `steps` gives over the network is what it gives in process, on every rank.
  static void expect_same_bits(const Steps& steps, int ranks) {
    const auto in_process = steps.run(ranks);
    ASSERT_TRUE(all_equal(in_process));
    const auto results = run_ranks(ranks, [&](const Rendezvous& rendezvous) {
      const auto session = sealed_session(open(rendezvous), steps.model, steps.options);
      Gradients gradients(steps.model);
      std::vector<std::byte> bytes;
      for (int step = 0; step < steps.steps; ++step) {
        gradients.fill_wide(Steps::seed(rendezvous.rank, step), steps.exponents);
        steps.reduce(*session, gradients);
        require(session->commit(), "the step counts");
        if (!varies(steps.model))
          require(session->last_step().sent_bytes == wire_bytes(*session), "as many bytes were sent as the plan says");
        const std::vector<std::byte> now = gradients.bytes();
        bytes.insert(bytes.end(), now.begin(), now.end());
      }
      require(bytes == in_process[0], "the bytes are those of the in-process transport");
      return 0;
    });
    EXPECT_EQ(complaints(results), "");
  }

  static bool varies(const Model& model) {
    return std::any_of(model.begin(), model.end(),
                       [](const Tensor& tensor) { return tensor.codec.sparse() || tensor.codec.low_rank(); });
  }
  static std::size_t wire_bytes(const Session& session) {
    std::size_t bytes = 0;
    for (BucketId id = 0; id < session.buckets(); ++id) bytes += session.bucket_plan(id).wire_bytes(session.rank());
    return bytes;
  }
};

INSTANTIATE_TEST_SUITE_P(Networks, SessionOverUcx, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(SessionOverUcx, SameBitsOfEveryCodecAndSize) {
  std::mt19937 random(11);
  for (const int ranks : {2, 3, 4, 7}) {
    Steps steps{.steps = 2};
    for (const Codec& codec : {Codec{}, Codec{Bf16{}}, Codec{Fp16{}}, Codec{Int8{}}, Codec{Int4{}}})
      for (const int most : {10, 1'000, 30'000}) {
        const auto count = static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
        steps.model.push_back({codec.spec() + " of " + std::to_string(count), {count}, ElementType::f32, codec});
      }
    for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot, Algorithm::tree})
      for (const std::size_t share : {std::size_t{700}, std::size_t{1} << 16}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + to_string(algorithm) + ", share " + std::to_string(share));
        steps.options.plan.algorithm = algorithm;
        steps.options.plan.share_elements = share;
        expect_same_bits(steps, ranks);
      }
  }
}

TEST_P(SessionOverUcx, TheUrgentGoFirst) {
  Model model;
  for (const std::int64_t rows : {320, 160, 80})
    model.push_back({std::to_string(rows), {rows, 64}, ElementType::f32, Int8{}});
  model.back().priority = -1;
  SessionOptions options;
  options.bucket_bytes = 1;
  options.plan = {.algorithm = Algorithm::two_shot, .share_elements = 256};
  const auto results = run_ranks(3, [&](const Rendezvous& rendezvous) {
    const std::vector<BucketId> starts =
        rendezvous.rank == 1 ? std::vector<BucketId>{1, 2, 0} : std::vector<BucketId>{2, 1, 0};
    require(order_of_ends(open(rendezvous), model, options, starts) == std::vector<ParameterId>{0, 1, 2},
            "as urgent as they are");
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
}

TEST_P(SessionOverUcx, SameBitsOfRings) {
  Steps steps{.model = {}, .steps = 2};
  for (const Codec& codec : {Codec{}, Codec{Bf16{}}})
    for (const std::int64_t count : {0, 1, 3, 997, 70'001})
      steps.model.push_back({codec.spec() + " of " + std::to_string(count), {count}, ElementType::f32, codec});
  steps.model.push_back({"half", {1001}, ElementType::f16, Codec{}});
  for (const int ranks : {2, 3, 7})
    for (const std::size_t share : {std::size_t{1000}, std::size_t{0}}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, share " + std::to_string(share));
      steps.options.plan = {.algorithm = Algorithm::ring, .share_elements = share};
      expect_same_bits(steps, ranks);
    }
}

TEST_P(SessionOverUcx, SameBitsOfTopKAndRandomK) {
  for (int ranks = 2; ranks <= 7; ++ranks)
    for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + to_string(algorithm));
      Steps steps{.steps = 4};
      steps.model = {{"1 %", {50'000}, ElementType::f32, TopK{.ratio = 0.01}},
                     {"in 8", {3001}, ElementType::bf16, TopK{.ratio = 0.2, .values = Int8{}}},
                     {"nearly all", {1000}, ElementType::f32, TopK{.ratio = 0.99}},
                     {"of few", {2}, ElementType::f32, TopK{.ratio = 0.01}},
                     {"random", {5000}, ElementType::f32, RandomK{.ratio = 0.1}},
                     {"int4", {5000}, ElementType::f32, Int4{}}};
      steps.options.plan.algorithm = algorithm;
      expect_same_bits(steps, ranks);
    }
  // Frames of megabytes.
  expect_same_bits({.model = {{"large", {3'000'003}, ElementType::f32, TopK{.ratio = 0.3}}}, .steps = 2}, 3);
}

TEST_P(SessionOverUcx, SameBitsOfPowerSgd) {
  for (const int ranks : {2, 3})
    for (const bool both : {false, true}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks" + (both ? ", both factors" : ""));
      Steps steps{.steps = 5};
      steps.model = {
          {"conv", {64, 32, 3, 3}, ElementType::f32, PowerSgd{.rank = 4, .both_factors = both}},
          {"linear", {700, 300}, ElementType::bf16, PowerSgd{.rank = 4, .factors = Int8{}, .both_factors = both}},
          {"bias", {700}, ElementType::f32, Codec{}},
          {"int4", {5000}, ElementType::f32, Int4{}}};
      expect_same_bits(steps, ranks);
    }
}

TEST_P(SessionOverUcx, SameBitsOfTensorsLargerThanAllBuffers) {
  for (const int ranks : {2, 3})
    for (const Codec& codec : {Codec{}, Codec{Int8{}}, Codec{Int4{}}}) {
      SCOPED_TRACE(codec.spec() + " on " + std::to_string(ranks));
      expect_same_bits({.model = {{"large", {1'000'003}, ElementType::f32, codec}}, .steps = 2}, ranks);
    }
}

TEST_P(SessionOverUcx, SameBitsOfBucketsInAnyOrder) {
  Steps steps{.steps = 5, .reduce = in_random_order(3)};
  steps.options.bucket_bytes = 4'000;
  for (const int ranks : {2, 4, 16}) expect_same_bits(steps, ranks);
}

TEST_P(SessionOverUcx, KilledRankIsNamedToTheOthers) {
  for (const auto& [victim, form] : {std::pair{0, Algorithm::automatic},
                                     {2, Algorithm::automatic},
                                     {0, Algorithm::ring},
                                     {1, Algorithm::ring},
                                     {2, Algorithm::tree}}) {
    const auto results = run_ranks(3, [&, victim = victim, form = form](const Rendezvous& rendezvous) {
      const Model model = {{"large", {1'000'003}, ElementType::f32, form == Algorithm::ring ? Codec{} : Codec{Int8{}}}};
      SessionOptions options;
      options.plan.algorithm = form;
      const auto session = sealed_session(open(rendezvous), model, options);
      Gradients gradients(model);
      TimePoint began;
      const Error error = error_of([&] {
        for (int step = 0;; ++step) {
          if (step == 3 && rendezvous.rank == victim) raise(SIGKILL);
          began = Clock::now();
          session->all_reduce(gradients.pointers());
          session->commit();
        }
      });
      require(error.code() == Errc::peer_lost, error.what());
      const std::string name = "rank " + std::to_string(victim) + " lost";
      require(std::string(error.what()).find(name) != std::string::npos, name + ", not: " + error.what());
      require(Clock::now() - began < std::chrono::seconds(5), "soon, not at the deadline of a minute");
      require(error_of([&] { session->all_reduce(gradients.pointers()); }).code() == Errc::peer_lost, "it stays lost");
      return 0;
    });
    for (int rank = 0; rank < 3; ++rank) {
      const RankResult& result = results[static_cast<std::size_t>(rank)];
      if (rank == victim)
        EXPECT_EQ(result.signal, SIGKILL);
      else
        EXPECT_EQ(result.exit_status, 0) << result.text;
    }
  }
}

TEST_P(SessionOverUcx, RanksThatDisagreeAllHearBothValues) {
  for (const int odd : {0, 2}) {
    const auto results = run_ranks(3, [&](const Rendezvous& rendezvous) {
      Model model = mixed_model();
      if (rendezvous.rank == odd) model[3].codec = Int8{.block = 128};
      const auto transport = open(rendezvous);
      const Error error = error_of([&] { sealed_session(transport, model); });
      require(error.code() == Errc::mismatch, error.what());
      for (const char* value : {"int8:block=256", "int8:block=128"})
        require(std::string(error.what()).find(value) != std::string::npos,
                std::string(value) + " in: " + error.what());
      return 0;
    });
    EXPECT_EQ(complaints(results), "");
  }
}

}  // namespace
}  // namespace tightwire::testing::ucx_session_test
