// Reductions side by side: started in one order, waited for in another, on several threads, for a long time.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/order_of_ends.hpp"
#include "support/ranks.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_engine {
namespace {

using std::chrono::milliseconds;

Model many_parameters(int count) {
  Model model;
  for (int i = 0; i < count; ++i)
    model.push_back({"p" + std::to_string(i),
                     {i % 7 == 0 ? 1 : 37 * i % 997, 3},
                     ElementType::f32,
                     i % 3 == 0   ? Codec{Int4{}}
                     : i % 3 == 1 ? Codec{Int8{}}
                                  : Codec{}});
  return model;
}
SessionOptions bucket_each(Algorithm algorithm = Algorithm::automatic) {
  SessionOptions options;
  options.bucket_bytes = 1;
  options.plan.algorithm = algorithm;
  options.plan.share_elements = 256;
  options.timeout = std::chrono::seconds(30);
  return options;
}

TEST(Engine, TwentyBucketsInAnotherOrderOnEveryRank) {
  Steps steps{.model = many_parameters(20), .options = bucket_each(), .steps = 20};
  const auto in_order = steps.run(4);
  EXPECT_TRUE(all_equal(in_order));
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    steps.reduce = in_random_order(seed);
    EXPECT_TRUE(steps.run(4) == in_order);
  }
}

/// Buckets of many chunks, of which four may be under way. The urgent ones are the longest.
Model long_parameters(int count, const Codec& codec = Int8{.block = 64}) {
  Model model;
  for (int i = 0; i < count; ++i)
    model.push_back({"long" + std::to_string(i), {80 * (count - i), 64}, ElementType::f32, codec});
  return model;
}

TEST(Engine, WhatTheNextForwardPassNeedsFirstEndsFirst) {
  const Model model = long_parameters(5);
  Model told = model;
  told[3].priority = 2;
  told[1].priority = -1;
  const std::vector<std::vector<BucketId>> starts = {{4, 3, 2, 1, 0}, {4, 2, 3, 0, 1}, {3, 4, 1, 2, 0}};
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot, Algorithm::tree})
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const auto rank = static_cast<std::size_t>(transport->rank());
      EXPECT_EQ(order_of_ends(transport, model, bucket_each(algorithm), starts[rank]),
                (std::vector<ParameterId>{0, 1, 2, 3, 4}))
          << to_string(algorithm) << ", rank " << rank;
      EXPECT_EQ(order_of_ends(transport, told, bucket_each(algorithm), starts[rank]),
                (std::vector<ParameterId>{3, 0, 2, 4, 1}))
          << to_string(algorithm) << ", rank " << rank;
    });
}

TEST(Engine, TheUrgentGoFirstInRingsAndOverNodesToo) {
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    const std::vector<ParameterId> in_order = {0, 1, 2, 3, 4};
    EXPECT_EQ(order_of_ends(transport, long_parameters(5, Codec{}), bucket_each(Algorithm::ring), {4, 3, 2, 1, 0}),
              in_order);
    SessionOptions options = bucket_each();
    options.hierarchy = {.node_of_rank = {0, 0, 1, 1}, .inside = Codec{}};
    options.plan.one_shot_bytes = 0;
    EXPECT_EQ(order_of_ends(transport, long_parameters(5), options, {4, 3, 2, 1, 0}), in_order);
  });
}

TEST(Engine, UrgencyChangesNoBitAndHoldsNobodyUpForEver) {
  // Every rank has another idea of what is under way when, in every form.
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot, Algorithm::tree, Algorithm::ring}) {
    const Model model = long_parameters(6, algorithm == Algorithm::ring ? Codec{} : Codec{Int4{}});
    Steps steps{.model = model, .options = bucket_each(algorithm), .steps = 8};
    const auto in_order = steps.run(4);
    EXPECT_TRUE(all_equal(in_order));
    steps.reduce = in_random_order(5);
    EXPECT_TRUE(steps.run(4) == in_order) << to_string(algorithm);
  }
}

/// Whose messages take a while.
class SlowTransport final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;
  Ticket post(std::span<const Message> round) override {
    std::this_thread::sleep_for(milliseconds(2));
    return WrappingTransport::post(round);
  }
};

TEST(Engine, LettingTheUrgentGoFirstIsNoLackOfProgress) {
  // 0 takes several times the limit, in which 1 goes on hardly at all.
  Transports transports;
  for (auto& inner : local::make(2)) transports.push_back(std::make_shared<SlowTransport>(std::move(inner)));
  SessionOptions options = bucket_each(Algorithm::two_shot);
  options.plan.share_elements = 64;
  options.timeout = milliseconds(250);
  run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
    EXPECT_EQ(order_of_ends(transport, long_parameters(2), options, {1, 0}), (std::vector<ParameterId>{0, 1}));
  });
}

TEST(Engine, BlockingAndBackgroundUseMix) {
  const Model model = many_parameters(9);
  Steps steps{.model = model, .options = bucket_each(), .steps = 10};
  const auto expected = steps.run(3);
  steps.reduce = [](Session& session, Gradients& gradients) {
    if ((session.steps() + static_cast<std::uint64_t>(session.rank())) % 2 == 0)
      session.all_reduce(gradients.pointers());
    else
      in_random_order(3)(session, gradients);
  };
  EXPECT_TRUE(steps.run(3) == expected);
}

TEST(Engine, StartDoesNotWaitAndTheWorkGoesOnWithoutTheCaller) {
  // Rank 1 starts only after rank 0's start has returned; then nobody calls the Session until all bytes are gone.
  const Model model = {{"w", {30'000}, ElementType::f32, Int8{}}};
  Transports transports;
  std::vector<std::shared_ptr<CountingTransport>> counters;
  for (auto& inner : local::make(2)) {
    counters.push_back(std::make_shared<CountingTransport>(std::move(inner)));
    transports.push_back(counters.back());
  }
  std::atomic<bool> started = false;
  run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, bucket_each(Algorithm::two_shot));
    const std::uint64_t before = counters[rank]->sent_bytes();
    const std::uint64_t planned = session->bucket_plan(0).wire_bytes(transport->rank());
    Gradients gradients(model);
    gradients.fill([&](std::size_t, std::size_t) { return static_cast<float>(rank); });
    while (rank == 1 && !started) std::this_thread::yield();
    Handle handle = session->start(0, gradients.pointers());
    if (rank == 0) started = true;
    const TimePoint until = Clock::now() + std::chrono::seconds(20);
    while (counters[rank]->sent_bytes() - before < planned && Clock::now() < until)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(counters[rank]->sent_bytes() - before, planned);
    handle.wait();
    for (const float x : gradients.values(0)) ASSERT_NEAR(x, 0.5f, 0.01f);
  });
}

TEST(Engine, ASingleHandleIsWaitedForWhileOthersAreNot) {
  // Waiting for the last started must not need the others to be waited for, and they must go on meanwhile.
  const Model model = many_parameters(6);
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, bucket_each());
    Gradients gradients(model);
    for (int step = 0; step < 30; ++step) {
      std::vector<Handle> handles;
      for (BucketId id = 0; id < 6; ++id) {
        void* pointer = gradients.pointers()[id];
        handles.push_back(session->start(id, {&pointer, 1}));
      }
      handles[static_cast<std::size_t>((step + transport->rank()) % 6)].wait();
      for (Handle& handle : handles) handle.wait();
      session->commit();
    }
  });
}

/// One rank's rounds on one communicator: random sizes, payload a function of round and rank, every element checked.
void check_rounds(Session& session, const Model& model, int rounds, std::uint64_t seed, bool yields) {
  FastRandom common(seed), own(seed + 1000 * static_cast<std::uint64_t>(session.rank() + 1));
  Gradients gradients(model);
  const float mean = static_cast<float>(session.size() - 1) / 2;
  for (int round = 0; round < rounds; ++round) {
    const BucketId id = common.below(session.buckets());
    const ParameterId p = session.bucket_parameters(id)[0];
    const auto value = [&](std::size_t i) { return static_cast<float>(round % 1000) + static_cast<float>(i % 64); };
    for (std::size_t i = 0; i < model[p].count(); ++i)
      gradients.set(p, i, value(i) + static_cast<float>(session.rank()));
    if (yields && own.below(16) == 0) std::this_thread::sleep_for(std::chrono::microseconds(own.below(2000)));
    if (yields && own.below(4) == 0) std::this_thread::yield();
    void* pointer = gradients.pointers()[p];
    session.start(id, {&pointer, 1}).wait();
    for (std::size_t i = 0; i < model[p].count(); ++i)
      ASSERT_EQ(gradients.get(p, i), value(i) + mean) << "round " << round << ", element " << i;
  }
}
Model exact_sizes() {
  Model model;
  for (const std::int64_t count : {1, 2, 15, 64, 257, 1000, 4099, 20'000})
    model.push_back({"of " + std::to_string(count), {count}, ElementType::f32, Codec{}});
  return model;
}

TEST(Engine, TwoThousandReductionsOfChangingSizeBackToBack) {
  const Model model = exact_sizes();
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, bucket_each());
    check_rounds(*session, model, 2000, 1, true);
  });
}

TEST(Engine, ThreeCommunicatorsOnThreeThreadsEach) {
  // A communicator per thread, each a group of its own.
  const Model model = exact_sizes();
  std::vector<Transports> groups;
  for (int group = 0; group < 3; ++group) groups.push_back(local::make(2));
  run_all(2, [&](const std::shared_ptr<Transport>& rank) {
    std::vector<std::thread> threads;
    for (std::size_t group = 0; group < 3; ++group)
      threads.emplace_back([&, group] {
        const auto session =
            sealed_session(groups[group][static_cast<std::size_t>(rank->rank())], model, bucket_each());
        check_rounds(*session, model, 300, group, true);
      });
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Engine, ThreeSessionsOnOneTransportOnThreadsOfTheirOwn) {
  // Their waits share a transport: no thread may sleep through its message because another one woke for its own.
  const Model model = exact_sizes();
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (int i = 0; i < 3; ++i) sessions.push_back(sealed_session(transport, model, bucket_each()));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; ++i)
      threads.emplace_back([&, i] { check_rounds(*sessions[i], model, 300, 10 + i, i != 0); });
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Engine, SessionsOnOneTransportInOneThreadDoNotMeet) {
  // The same plan twice, used in opposite order on different ranks.
  const Model model = {{"w", {500}, ElementType::f32, Codec{}}};
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto a = sealed_session(transport, model, bucket_each()), b = sealed_session(transport, model, bucket_each());
    Gradients for_a(model), for_b(model);
    for (int step = 0; step < 50; ++step) {
      for_a.fill([&](std::size_t, std::size_t) { return static_cast<float>(step); });
      for_b.fill([&](std::size_t, std::size_t) { return static_cast<float>(-step); });
      Handle first = transport->rank() == 0 ? a->start(0, for_a.pointers()) : b->start(0, for_b.pointers());
      Handle second = transport->rank() == 0 ? b->start(0, for_b.pointers()) : a->start(0, for_a.pointers());
      second.wait();
      first.wait();
      ASSERT_EQ(for_a.get(0, 499), static_cast<float>(step));
      ASSERT_EQ(for_b.get(0, 499), static_cast<float>(-step));
    }
  });
}

TEST(Engine, AnUnusedSessionEndsAtOnce) {
  // Its thread sleeps; neither it nor the destructor may wait for a limit.
  const Model model = many_parameters(3);
  const TimePoint began = Clock::now();
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    for (int i = 0; i < 50; ++i) {
      const auto session = sealed_session(transport, model, bucket_each());
      if (i % 2 == 0) in_random_order(1)(*session, *std::make_unique<Gradients>(model));
    }
  });
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
}

/// Counts how often somebody asks whether a round is done.
class Asked final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;
  bool done(Ticket ticket) override {
    ++questions;
    return WrappingTransport::done(ticket);
  }
  std::atomic<int> questions = 0;
};

TEST(Engine, WaitingIsSleeping) {
  // Not measured by the clock, which other programs on the machine share: who spins asks a hundred thousand times.
  const Model model = many_parameters(3);
  Transports transports = local::make(2);
  const auto asked = std::make_shared<Asked>(transports[0]);
  transports[0] = asked;
  run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, bucket_each());
    Gradients gradients(model);
    void* pointer = gradients.pointers()[0];
    if (transport->rank() == 1) std::this_thread::sleep_for(milliseconds(400));
    const int before = asked->questions;
    session->start(0, {&pointer, 1}).wait();
    session->all_reduce(gradients.pointers());
    EXPECT_LT(asked->questions - before, 1000);
  });
}

/// New threads have stacks that no address space has room for, as long as it lives.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&usual_);
    pthread_attr_t endless;
    pthread_attr_init(&endless);
    pthread_attr_setstacksize(&endless, std::size_t{1} << 47);
    pthread_setattr_default_np(&endless);
    pthread_attr_destroy(&endless);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
  ~NoMoreThreads() {
    pthread_setattr_default_np(&usual_);
    pthread_attr_destroy(&usual_);
  }

 private:
  pthread_attr_t usual_{};
};

TEST(Engine, WithoutAThreadToBeHadTheOtherRanksAreToldAndNothingHangs) {
  const Model model = {{"w", {3000}, ElementType::f32, Int8{}}};
  std::atomic<bool> failed = false;
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    auto session = sealed_session(transport, model, bucket_each());
    Gradients gradients(model);
    gradients.fill_bell(1);
    if (transport->rank() == 0) {
      const NoMoreThreads none;
      EXPECT_THROW(session->start(0, gradients.pointers()), std::system_error);
      failed = true;
      EXPECT_THROW(session->start(0, gradients.pointers()), std::system_error) << "it is closed";
      EXPECT_THROW(session->all_reduce(gradients.pointers()), std::system_error);
      EXPECT_THROW(session->commit(), std::system_error);
    } else {
      while (!failed) std::this_thread::yield();
      const TimePoint began = Clock::now();
      EXPECT_ERROR(session->all_reduce(gradients.pointers()), Errc::peer_lost, "rank 0");
      EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
    }
    session.reset();
  });
}

}  // namespace
}  // namespace tightwire::testing::session_engine
