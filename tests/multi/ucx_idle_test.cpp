// Waiting costs next to nothing and misses nothing.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "ucx_support.hpp"

namespace tightwire::testing::ucx_idle_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class UcxIdle : public ::testing::TestWithParam<Network> {
 protected:
  void run(int size, const std::function<void(Transport&)>& body) {
    const Network network = GetParam();
    const auto results = run_ranks(size, [&](const Rendezvous& rendezvous) {
      // Over our own transports sleeps are long, or the end of one would pass for being woken.
      const std::unique_ptr<Transport> transport = network.is_shm || network.is_mixed
                                                       ? network.open(rendezvous, {}, std::chrono::seconds(5))
                                                       : network.open(rendezvous);
      barrier(*transport);
      body(*transport);
      barrier(*transport);
      return 0;
    });
    EXPECT_EQ(complaints(results), "");
    for (const RankResult& result : results) EXPECT_EQ(result.text, "");
  }
};

INSTANTIATE_TEST_SUITE_P(Networks, UcxIdle, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

/// Processor time of this process, all threads, user and system.
microseconds processor_time() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto to_duration = [](const timeval& value) {
    return std::chrono::seconds(value.tv_sec) + microseconds(value.tv_usec);
  };
  return to_duration(usage.ru_utime) + to_duration(usage.ru_stime);
}

TEST_P(UcxIdle, UsesUnderFivePercentOfAProcessor) {
  run(3, [](Transport& transport) {
    std::byte word{};
    const int peer = (transport.rank() + 1) % 3;
    const Message receive = receive_from(peer, 1, {&word, 1});
    const Ticket ticket = transport.post({&receive, 1});
    const microseconds before = processor_time();
    const TimePoint until = Clock::now() + std::chrono::seconds(1);
    bool came = false;  // on a busy machine a peer's second may end well before ours
    while (Clock::now() < until && !came) {
      came = transport.done(ticket);
      if (!came) transport.idle(until);
    }
    const microseconds used = processor_time() - before;
    require(used < milliseconds(50),
            "a second of waiting uses under 50 ms; used " + std::to_string(used.count()) + " us");
    std::byte out{};
    const Message send = send_to((transport.rank() + 2) % 3, 1, {&out, 1});
    wait(transport, transport.post({&send, 1}));
    if (!came) wait(transport, ticket);
  });
}

TEST_P(UcxIdle, SleepsThroughNoMessage) {
  run(2, [](Transport& transport) {
    // Rank 1 sleeps when a message is sent, and must have it soon, small or large. The pauses are under the longest
    // sleep, so that a message that fails to wake it shows as a wait of that length.
    std::vector<std::byte> data(1 << 20);
    milliseconds longest{0};
    for (std::uint64_t turn = 0; turn < 60; ++turn) {
      const auto part = std::span(data).first(turn % 3 == 0 ? 1 : turn % 3 == 1 ? 5'000 : data.size());
      TimePoint::rep sent_at = 0;
      const auto clock = std::as_writable_bytes(std::span(&sent_at, 1));
      if (transport.rank() == 0) {
        std::this_thread::sleep_for(milliseconds(10));
        sent_at = Clock::now().time_since_epoch().count();
        const Message round[] = {send_to(1, turn, part), send_to(1, 1'000 + turn, clock)};
        wait(transport, transport.post(round));
      } else {
        const Message round[] = {receive_from(0, turn, part), receive_from(0, 1'000 + turn, clock)};
        wait(transport, transport.post(round));
        const auto late = Clock::now().time_since_epoch() - Clock::duration(sent_at);
        longest = std::max(longest, std::chrono::duration_cast<milliseconds>(late));
      }
    }
    require(longest < milliseconds(50),
            "sleepers wake at once; the longest took " + std::to_string(longest.count()) + " ms");
  });
}

TEST_P(UcxIdle, ReturnsInTime) {
  run(2, [](Transport& transport) {
    transport.idle(Clock::now());  // hears what came before
    for (const int wait_ms : {0, 1, 30, 150}) {
      const TimePoint until = Clock::now() + milliseconds(wait_ms);
      while (Clock::now() < until) transport.idle(until);
      require(Clock::now() - until < milliseconds(50), "idle ends at the time asked for");
    }
    transport.idle(Clock::now() - std::chrono::hours(1));
  });
}

TEST_P(UcxIdle, IsEndedByWakeBeforeAndAfterItBegins) {
  run(2, [](Transport& transport) {
    const auto returns_within = [&](milliseconds limit) {
      const TimePoint began = Clock::now();
      transport.idle(began + std::chrono::seconds(5));
      return Clock::now() - began < limit;
    };
    transport.idle(Clock::now());
    for (int turn = 0; turn < 20; ++turn) {
      transport.wake();
      require(returns_within(milliseconds(50)), "a wake before idle is not lost");
      const TimePoint until = Clock::now() + milliseconds(20);
      transport.idle(until);
      require(Clock::now() >= until, "a wake counts once");
      std::thread waker([&] {
        std::this_thread::sleep_for(milliseconds(20));
        transport.wake();
      });
      require(returns_within(milliseconds(200)), "a wake ends a sleep");
      waker.join();
    }
  });
}

TEST_P(UcxIdle, WakesEveryThreadThatWaits) {
  run(2, [](Transport& transport) {
    // Whichever thread makes the progress, the one whose message came must hear of it.
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(4);
    for (std::size_t index = 0; index < failures.size(); ++index)
      threads.emplace_back([&, index] {
        try {
          for (std::uint64_t turn = 0; turn < 50; ++turn) {
            std::byte out{};
            std::byte in{};
            const int peer = 1 - transport.rank();
            const Message receive = receive_from(peer, index, {&in, 1});
            const Message send = send_to(peer, index, {&out, 1});
            const Ticket ticket = transport.post({&receive, 1});
            if ((turn + index) % 2 == static_cast<std::uint64_t>(transport.rank()))
              std::this_thread::sleep_for(milliseconds(1 + (turn * 7 + index) % 5));
            wait(transport, transport.post({&send, 1}));
            const TimePoint began = Clock::now();
            wait(transport, ticket);
            require(Clock::now() - began < milliseconds(80), "no thread sleeps through its message");
          }
        } catch (const std::exception&) {
          failures[index] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
  });
}

/// Seconds per exchange of 1 MiB with the two neighbours in a ring: the best of several series.
double exchange_seconds(const Network& network, int ranks) {
  const Shared<double> best;
  const auto results = run_ranks(ranks, [&](const Rendezvous& rendezvous) {
    const std::unique_ptr<Transport> transport = network.open(rendezvous);
    std::vector<std::byte> in(1 << 20);
    std::vector<std::byte> out(in.size());
    const int next = (rendezvous.rank + 1) % ranks;
    const int previous = (rendezvous.rank + ranks - 1) % ranks;
    double least = 1e9;
    for (int series = 0; series < 8; ++series) {
      constexpr int kTurns = 50;
      barrier(*transport);
      const TimePoint began = Clock::now();
      for (int turn = 0; turn < kTurns; ++turn) {
        const Message round[] = {receive_from(previous, 1, in), send_to(next, 1, out)};
        wait(*transport, transport->post(round));
      }
      least = std::min(least, std::chrono::duration<double>(Clock::now() - began).count() / kTurns);
    }
    if (rendezvous.rank == 0) *best = least;
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
  return *best;
}

TEST_P(UcxIdle, LetsMoreRanksThanProcessorsShareThem) {
  // Waiters that do not give way made this 70 times slower. Twice the ranks have twice the work: 2 is ideal.
  const double two = exchange_seconds(GetParam(), 2);
  const double four = exchange_seconds(GetParam(), 4);
  RecordProperty("microseconds_2_ranks", std::to_string(two * 1e6));
  RecordProperty("microseconds_4_ranks", std::to_string(four * 1e6));
  EXPECT_LT(four, 4 * two) << "2 ranks: " << two * 1e6 << " us, 4 ranks: " << four * 1e6 << " us";
}

}  // namespace
}  // namespace tightwire::testing::ucx_idle_test
