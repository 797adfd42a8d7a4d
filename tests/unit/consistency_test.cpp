// What must be equal on all ranks, or different, and is not.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <tightwire/consistency.hpp>
#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

#include "support/ranks.hpp"

namespace tightwire::testing::consistency_test {
namespace {

constexpr auto kEqual = Replica::Must::be_equal;
constexpr auto kDiffer = Replica::Must::differ;

std::span<const std::byte> bytes_of(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }
std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// A model of two parameters with momentum, as one rank has it.
struct Trained {
  std::vector<float> weight = std::vector<float>(1000, 0.5f), momentum = weight, bias = {1, 2, 3};
  std::string rate = "0.1", loader_seed = "17", augmentation_seed;
  std::uint64_t step = 300;

  explicit Trained(int rank) : augmentation_seed(std::to_string(100 + rank)) {}
  std::vector<Replica> replicas() const {
    return {{"learning rate", bytes_of(rate), kEqual},
            {"loader seed", bytes_of(loader_seed), kEqual},
            {"augmentation seed", bytes_of(augmentation_seed), kDiffer},
            {"layer.weight momentum", bytes_of(momentum), kEqual},
            {"layer.weight", bytes_of(weight), kEqual},
            {"layer.bias", bytes_of(bias), kEqual}};
  }
};

std::vector<Outcome> compare(int ranks, const std::function<void(int rank, Trained&)>& spoil) {
  return run_each(local::make(ranks), [&](const std::shared_ptr<Transport>& transport) {
    ConsistencyCheck check(transport, {.timeout = std::chrono::seconds(20)});
    Trained trained(transport->rank());
    spoil(transport->rank(), trained);
    check.compare(trained.step, trained.replicas());
  });
}

/// Every rank is told the same, with this in it.
void expect_found(const std::vector<Outcome>& outcomes, const std::vector<std::string>& texts) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, Errc::mismatch);
    EXPECT_EQ(outcome.message, outcomes[0].message);
    for (const std::string& text : texts) EXPECT_TRUE(contains(outcome.message, text));
  }
}

TEST(Consistency, EqualReplicasPass) {
  for (const int ranks : {1, 2, 5})
    for (const Outcome& outcome : compare(ranks, [](int, Trained&) {})) EXPECT_FALSE(outcome.error) << outcome.message;
}

TEST(Consistency, OneChangedBitOfAnyParameterIsFoundAndNamed) {
  for (const std::size_t at : {0u, 1u, 499u, 984u, 999u}) {  // within a stride of the hash, and in its rest
    const auto outcomes = compare(4, [at](int rank, Trained& trained) {
      if (rank == 2) trained.weight[at] = std::nextafter(trained.weight[at], 1.0f);
    });
    expect_found(outcomes, {"after step 300", "\"layer.weight\": rank 2 has hash ", "ranks 0, 1 and 3 have hash ",
                            "of 4000 bytes (1 of 7 compared differ)"});
  }
}

TEST(Consistency, MomentumThatWasNotSummedIsNamedBeforeTheParametersItSpoilt) {
  const auto outcomes = compare(3, [](int rank, Trained& trained) {
    trained.momentum[7] += static_cast<float>(rank);
    trained.weight[7] -= static_cast<float>(rank);
  });
  expect_found(outcomes, {"\"layer.weight momentum\": rank 0 has hash ", "; rank 1 has hash ", "; rank 2 has hash ",
                          "(2 of 7 compared differ)"});
}

TEST(Consistency, SeedsThatDifferWhereTheyMustNot) {
  const auto outcomes = compare(4, [](int rank, Trained& trained) {
    if (rank == 0) trained.loader_seed = "18";
  });
  expect_found(outcomes, {"\"loader seed\": rank 0 has 18; ranks 1 to 3 have 17"});
}

TEST(Consistency, SeedsThatCoincideWhereTheyMustNot) {
  const auto outcomes = compare(4, [](int rank, Trained& trained) {
    if (rank >= 2) trained.augmentation_seed = "7";
  });
  expect_found(outcomes, {"coincide after step 300: \"augmentation seed\": ranks 2 and 3 all have 7"});
}

TEST(Consistency, StepCountersOutOfStep) {
  const auto outcomes = compare(3, [](int rank, Trained& trained) { trained.step += rank == 1 ? 1 : 0; });
  expect_found(outcomes, {"step: rank 1 has 301; ranks 0 and 2 have 300"});
}

TEST(Consistency, RanksThatCompareOtherThings) {
  const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
    ConsistencyCheck check(transport);
    const Trained trained(transport->rank());
    std::vector<Replica> replicas = trained.replicas();
    if (transport->rank() == 1) replicas.pop_back();
    check.compare(5, replicas);
  });
  expect_found(outcomes, {"rank 1 has nothing more to compare; ranks 0 and 2 have \"layer.bias\" in the same place"});
}

TEST(Consistency, ComparesFirstAndThenEverySoManySteps) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    ConsistencyCheck check(transport, {.every = 10});
    const Trained trained(transport->rank());
    std::set<std::uint64_t> compared;
    int asked = 0;
    for (std::uint64_t step = 0; step < 31; ++step)
      if (check.after_step(step, [&] { return ++asked, trained.replicas(); })) compared.insert(step);
    EXPECT_EQ(compared, (std::set<std::uint64_t>{0, 10, 20, 30}));
    EXPECT_EQ(asked, 4);
  });
}

TEST(Consistency, SoundTrainingWithACompressedSessionRaisesNoAlarm) {
  run_all(3, [](const std::shared_ptr<Transport>& transport) {
    Session session(transport, {.codec = Int4{}});
    session.add("weight", {64, 32});
    session.seal();
    ConsistencyCheck check(transport, {.every = 1});
    std::vector<float> weight(2048, 0.1f), momentum(2048, 0.0f), gradient(2048);
    for (std::uint64_t step = 0; step < 50; ++step) {
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = weight[i] - static_cast<float>((i * 7 + static_cast<std::size_t>(transport->rank())) % 13);
      session.all_reduce(gradient);
      session.commit();
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        momentum[i] = 0.9f * momentum[i] + gradient[i];
        weight[i] -= 0.01f * momentum[i];
      }
      check.after_step(step, [&] {
        return std::vector<Replica>{{"momentum", bytes_of(momentum)}, {"weight", bytes_of(weight)}};
      });
    }
  });
}

TEST(Consistency, ARankThatDoesNotCompareIsNamedInTime) {
  const auto outcomes = run_each(local::make(2), [](const std::shared_ptr<Transport>& transport) {
    ConsistencyCheck check(transport, {.timeout = std::chrono::milliseconds(200)});
    if (transport->rank() == 0) check.compare(9, {});
  });
  EXPECT_EQ(outcomes[0].error, Errc::timeout);
  EXPECT_TRUE(contains(outcomes[0].message, "comparing replicas after step 9"));
  EXPECT_TRUE(contains(outcomes[0].message, "waiting for rank 1"));
}

TEST(Consistency, TheTransportGoesOnAfterADifference) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    ConsistencyCheck check(transport);
    const std::string mine = std::to_string(transport->rank());
    const std::vector<Replica> differing = {{"x", bytes_of(mine)}};
    EXPECT_ERROR(check.compare(1, differing), Errc::mismatch, "\"x\": rank 0 has 0; rank 1 has 1");
    check.compare(2, {});
  });
}

TEST(Consistency, HashesSeeEveryByteAndTheLength) {
  std::set<std::uint64_t> hashes;
  std::vector<std::byte> bytes(200);
  for (std::size_t size = 0; size <= bytes.size(); ++size) hashes.insert(detail::content_hash({bytes.data(), size}));
  for (std::byte& byte : bytes) {
    byte = std::byte{128};
    hashes.insert(detail::content_hash(bytes));
    byte = std::byte{0};
  }
  EXPECT_EQ(hashes.size(), 401u);
}

TEST(Consistency, Misuse) {
  EXPECT_ERROR(ConsistencyCheck(nullptr), Errc::invalid_argument, "the transport is null");
  EXPECT_ERROR(ConsistencyCheck(local::make(1)[0], {.every = 0}), Errc::invalid_argument, "every must be 1 or more");
}

}  // namespace
}  // namespace tightwire::testing::consistency_test
