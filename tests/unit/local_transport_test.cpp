// Ranks as threads: the contract of Transport, as far as the in-process one can show it.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/local_transport.hpp>

#include "support/ranks.hpp"

namespace tightwire::testing::local_transport_test {
namespace {

using std::chrono::milliseconds;

template <class T>
Message send(int peer, std::uint64_t tag, T& value) {
  return {Message::Kind::send, peer, tag, reinterpret_cast<std::byte*>(&value), sizeof value};
}
template <class T>
Message receive(int peer, std::uint64_t tag, T& value) {
  return {Message::Kind::receive, peer, tag, reinterpret_cast<std::byte*>(&value), sizeof value};
}
Ticket post(Transport& transport, const Message& message) { return transport.post({&message, 1}); }
void finish(Transport& transport, Ticket ticket) {
  while (!transport.done(ticket)) transport.idle(Clock::now() + milliseconds(100));
}

TEST(LocalTransport, MessagesWithATagMeetInOrder) {
  const auto ranks = local::make(2);
  std::array<int, 4> out = {1, 2, 3, 4}, in{};
  // Sends first for half of them, receives first for the rest; two tags crossing.
  const Ticket a = post(*ranks[0], send(1, 7, out[0])), b = post(*ranks[0], send(1, 7, out[1]));
  const Ticket c = post(*ranks[1], receive(0, 8, in[2])), d = post(*ranks[1], receive(0, 7, in[0]));
  const Ticket e = post(*ranks[1], receive(0, 7, in[1])), f = post(*ranks[1], receive(0, 7, in[3]));
  const Ticket g = post(*ranks[0], send(1, 8, out[2])), h = post(*ranks[0], send(1, 7, out[3]));
  for (const Ticket ticket : {a, b, g, h}) EXPECT_TRUE(ranks[0]->done(ticket));
  for (const Ticket ticket : {c, d, e, f}) EXPECT_TRUE(ranks[1]->done(ticket));
  EXPECT_EQ(in, out);
}

TEST(LocalTransport, ASpentTicketIsRefusedAndZeroIsAlwaysDone) {
  const auto ranks = local::make(2);
  int value = 1, place = 0;
  const Ticket ticket = post(*ranks[0], send(1, 1, value));
  EXPECT_FALSE(ranks[0]->done(ticket));
  EXPECT_EQ(ranks[0]->waiting_for(ticket), "1");
  post(*ranks[1], receive(0, 1, place));
  EXPECT_TRUE(ranks[0]->done(ticket));
  EXPECT_ERROR(ranks[0]->done(ticket), Errc::invalid_argument, "rank 0");
  EXPECT_ERROR(ranks[0]->done(12345678), Errc::invalid_argument, "never posted");
  EXPECT_TRUE(ranks[0]->done(0));
  EXPECT_EQ(ranks[0]->waiting_for(0), "");
}

TEST(LocalTransport, WaitingForNamesExactlyTheSilentRanks) {
  const auto ranks = local::make(4);
  int value = 1, a = 0, b = 0, c = 0;
  const std::array round = {receive(1, 1, a), receive(2, 1, b), receive(3, 1, c)};
  const Ticket ticket = ranks[0]->post(round);
  EXPECT_EQ(ranks[0]->waiting_for(ticket), "1, 2, 3");
  post(*ranks[2], send(0, 1, value));
  EXPECT_EQ(ranks[0]->waiting_for(ticket), "1, 3");
  EXPECT_FALSE(ranks[0]->done(ticket));
}

TEST(LocalTransport, AnotherSizeIsAnErrorOnBothSidesWithBothSizes) {
  for (const bool sender_first : {false, true}) {
    const auto ranks = local::make(2);
    std::array<std::byte, 100> out{}, in{};
    const Message short_send{Message::Kind::send, 1, 5, out.data(), 60};
    const Message long_receive{Message::Kind::receive, 0, 5, in.data(), 100};
    in.fill(std::byte{0x77});
    Ticket ticket = 0;
    if (sender_first) {
      ticket = post(*ranks[0], short_send);
      EXPECT_ERROR(post(*ranks[1], long_receive), Errc::corrupt, "expected 100 bytes, got 60");
      EXPECT_ERROR(ranks[1]->done(0x10001), Errc::corrupt, "expected 100 bytes, got 60");  // the same from now on
      EXPECT_ERROR(ranks[0]->done(ticket), Errc::peer_lost, "expected 100 bytes, got 60");
    } else {
      ticket = post(*ranks[1], long_receive);
      EXPECT_ERROR(post(*ranks[0], short_send), Errc::corrupt, "from rank 0 to rank 1");
      EXPECT_ERROR(ranks[1]->done(ticket), Errc::peer_lost, "expected 100 bytes, got 60");
    }
    for (const std::byte untouched : in) EXPECT_EQ(untouched, std::byte{0x77});
  }
}

TEST(LocalTransport, AbortReachesEveryRankNowAndLater) {
  const auto ranks = local::make(3);
  int place = 0;
  std::thread waiting([&] {
    const Ticket ticket = post(*ranks[0], receive(2, 1, place));
    const TimePoint began = Clock::now();
    EXPECT_ERROR(while (!ranks[0]->done(ticket)) ranks[0]->idle(Clock::now() + std::chrono::seconds(30)),
                 Errc::peer_lost, "rank 2 lost: out of cheese");
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  });
  std::this_thread::sleep_for(milliseconds(20));
  ranks[2]->abort("out of cheese");
  waiting.join();
  EXPECT_ERROR(post(*ranks[1], receive(2, 1, place)), Errc::peer_lost, "rank 2 lost: out of cheese");
  EXPECT_ERROR(post(*ranks[2], receive(0, 1, place)), Errc::peer_lost, "rank 2 (this rank) gave up: out of cheese");
  ranks[1]->abort("me too");  // the first reason stays
  EXPECT_ERROR(post(*ranks[0], receive(2, 1, place)), Errc::peer_lost, "out of cheese");
}

TEST(LocalTransport, WhatArrivedBeforeALossStillCounts) {
  const auto ranks = local::make(2);
  int value = 7, in[2] = {};
  const Ticket complete = post(*ranks[0], receive(1, 1, in[0])), incomplete = post(*ranks[0], receive(1, 2, in[1]));
  post(*ranks[1], send(0, 1, value));
  ranks[1]->abort("enough");
  EXPECT_TRUE(ranks[0]->done(complete));
  EXPECT_EQ(in[0], 7);
  EXPECT_ERROR(ranks[0]->done(incomplete), Errc::peer_lost, "enough");
}

TEST(LocalTransport, TakenBackMemoryIsNeverTouchedAgain) {
  const auto ranks = local::make(2);
  auto gone = std::make_unique<int>(5);
  int value = 6;
  const Ticket ticket = post(*ranks[0], receive(1, 1, *gone));
  ranks[0]->detach(std::as_writable_bytes(std::span(gone.get(), 1)));
  gone.reset();  // under ASan a message that met this receive would show
  EXPECT_ERROR(post(*ranks[1], send(0, 1, value)), Errc::peer_lost, "rank 0 lost: it took away memory");
  EXPECT_ERROR(ranks[0]->done(ticket), Errc::peer_lost, "this rank");
}

TEST(LocalTransport, DetachOfIdleMemoryChangesNothing) {
  const auto ranks = local::make(2);
  int value = 6, other = 0, place = 0;
  const Ticket ticket = post(*ranks[0], receive(1, 1, place));
  ranks[0]->detach(std::as_writable_bytes(std::span(&other, 1)));
  post(*ranks[1], send(0, 1, value));
  EXPECT_TRUE(ranks[0]->done(ticket));
  EXPECT_EQ(place, 6);
}

TEST(LocalTransport, ATransportThatEndsWithMessagesUnfinishedIsALoss) {
  auto ranks = local::make(2);
  int value = 1, place = 0;
  post(*ranks[0], send(1, 1, value));
  ranks[0].reset();
  EXPECT_ERROR(post(*ranks[1], receive(0, 1, place)), Errc::peer_lost, "rank 0 lost: it closed its transport");
}

TEST(LocalTransport, IdleEndsAtItsTimeAndByWake) {
  const auto ranks = local::make(2);
  ranks[0]->idle(Clock::now() + milliseconds(1));  // may return early once
  const TimePoint began = Clock::now();
  ranks[0]->idle(began + milliseconds(30));
  EXPECT_GE(Clock::now(), began + milliseconds(29));
  EXPECT_LT(Clock::now(), began + std::chrono::seconds(10));
  std::thread waker([&] {
    std::this_thread::sleep_for(milliseconds(20));
    ranks[0]->wake();
  });
  ranks[0]->idle(Clock::now() + std::chrono::seconds(60));
  EXPECT_LT(Clock::now(), began + std::chrono::seconds(30));
  waker.join();
}

TEST(LocalTransport, ThreadsOfARankDoNotTakeNewsFromEachOther) {
  // Both threads of rank 1 wait for a message each; rank 0 sends them at once. Whoever wakes first must not use up the
  // other's wake-up, or that one sleeps until its time is over.
  for (int repetition = 0; repetition < 200; ++repetition) {
    const auto ranks = local::make(2);
    int out[2] = {1, 2}, in[2] = {};
    std::atomic<bool> late = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        const Ticket ticket = post(*ranks[1], receive(0, static_cast<std::uint64_t>(i), in[i]));
        const TimePoint until = Clock::now() + std::chrono::seconds(5);
        while (!ranks[1]->done(ticket)) ranks[1]->idle(until);
        if (Clock::now() >= until) late = true;
      });
    const std::array round = {send(1, 0, out[0]), send(1, 1, out[1])};
    std::this_thread::sleep_for(std::chrono::microseconds(50 * (repetition % 8)));
    ranks[0]->post(round);
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(late) << "repetition " << repetition;
    EXPECT_EQ(in[0] + in[1], 3);
  }
}

TEST(LocalTransport, CrossingFirstMessagesComplete) {
  run_all(3, [](const std::shared_ptr<Transport>& transport) {
    std::vector<std::byte> out(std::size_t{4} << 20, static_cast<std::byte>(transport->rank())), in(out.size());
    const int next = (transport->rank() + 1) % 3, previous = (transport->rank() + 2) % 3;
    const Ticket sent = post(*transport, {Message::Kind::send, next, 1, out.data(), out.size()});
    const Ticket received = post(*transport, {Message::Kind::receive, previous, 1, in.data(), in.size()});
    finish(*transport, sent);
    finish(*transport, received);
    EXPECT_EQ(in.back(), static_cast<std::byte>(previous));
  });
}

TEST(LocalRun, GivesTheFirstErrorToTheCallerAndItsReasonToTheOthers) {
  std::atomic<int> told = 0;
  EXPECT_THROW(local::run(3,
                          [&](const std::shared_ptr<Transport>& transport) {
                            if (transport->rank() == 1) throw std::out_of_range("index 9 of 4");
                            int place = 0;
                            try {
                              finish(*transport, post(*transport, receive(1, 1, place)));
                            } catch (const Error& error) {
                              EXPECT_EQ(error.code(), Errc::peer_lost);
                              EXPECT_TRUE(contains(error.what(), "rank 1 lost: index 9 of 4"));
                              ++told;
                              throw;
                            }
                          }),
               std::out_of_range);
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace tightwire::testing::local_transport_test
