// Every byte arrives where it belongs, whatever its size, place, order and time.
#include <gtest/gtest.h>

#include <thread>

#include "ucx_support.hpp"

namespace tightwire::testing::ucx_delivery_test {
namespace {

using std::chrono::milliseconds;

class UcxDelivery : public ::testing::TestWithParam<Network> {
 protected:
  /// Runs `body` on `size` ranks, each with a transport, and expects that all end well and write nothing.
  void run(int size, const std::function<void(Transport&)>& body, milliseconds limit = milliseconds(60'000)) {
    const Network network = GetParam();
    const auto results = run_ranks(size,
                                   [&](const Rendezvous& rendezvous) {
                                     const std::unique_ptr<Transport> transport = network.open(rendezvous);
                                     body(*transport);
                                     return 0;
                                   },
                                   {.limit = limit});
    EXPECT_EQ(complaints(results), "");
    for (const RankResult& result : results) EXPECT_EQ(result.text, "");
  }
};

INSTANTIATE_TEST_SUITE_P(Networks, UcxDelivery, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

/// A receive buffer between guards, `offset` bytes off alignment.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t offset)
      : storage_(bytes + 128, std::byte{0x5A}), bytes_(bytes), offset_(offset) {}
  std::span<std::byte> place() { return std::span(storage_).subspan(64 + offset_, bytes_); }
  bool is_intact_around() const {
    const auto is_guard = [](std::byte value) { return value == std::byte{0x5A}; };
    const auto begin = storage_.begin();
    const auto first = begin + static_cast<std::ptrdiff_t>(64 + offset_);
    return std::all_of(begin, first, is_guard) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), is_guard);
  }

 private:
  std::vector<std::byte> storage_;
  std::size_t bytes_;
  std::size_t offset_;
};

void exchange_with_all(Transport& transport, std::size_t bytes, std::size_t offset) {
  const auto size = static_cast<std::size_t>(transport.size());
  const auto rank = static_cast<std::size_t>(transport.rank());
  std::vector<std::vector<std::byte>> out;
  std::vector<Guarded> in(size, Guarded(bytes, offset));
  std::vector<Message> round;
  for (std::size_t peer = 0; peer < size; ++peer) {
    std::vector<std::byte>& data = out.emplace_back(random_bytes(seed_of(rank, peer, bytes), bytes + offset));
    if (peer == rank) continue;
    round.push_back(send_to(static_cast<int>(peer), bytes, std::span(data).subspan(offset)));
    round.push_back(receive_from(static_cast<int>(peer), bytes, in[peer].place()));
  }
  wait(transport, transport.post(round));
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const std::string what =
        std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " from rank " + std::to_string(peer);
    const auto expected = random_bytes(seed_of(peer, rank, bytes), bytes + offset);
    require(std::equal(in[peer].place().begin(), in[peer].place().end(),
                       expected.begin() + static_cast<std::ptrdiff_t>(offset)),
            what + " are what was sent");
    require(in[peer].is_intact_around(), what + " stay inside their buffer");
  }
}

TEST_P(UcxDelivery, KeepsEveryByteOfEverySize) {
  run(3, [](Transport& transport) {
    // 92 to 94, 8255 to 8257 and 20553: around UCX's changes of protocol.
    for (const std::size_t bytes : {0UL, 1UL, 8UL, 92UL, 93UL, 94UL, 4'096UL, 8'255UL, 8'256UL, 8'257UL, 20'553UL,
                                    65'536UL, 262'145UL, 1'048'576UL})
      for (const std::size_t offset : {0UL, 1UL, 7UL}) exchange_with_all(transport, bytes, offset);
  });
}

TEST_P(UcxDelivery, KeepsEveryByteOfLargeMessages) {
  run(2, [](Transport& transport) {
    exchange_with_all(transport, 40UL << 20, 0);
    exchange_with_all(transport, (40UL << 20) + 1, 3);
  });
}

TEST_P(UcxDelivery, LetsFirstMessagesCross) {
  for (const int size : {2, 3}) {
    run(size, [](Transport& transport) {
      // The first traffic between any two ranks: everybody sends to its successor before anybody receives.
      const int next = (transport.rank() + 1) % transport.size();
      const int previous = (transport.rank() + transport.size() - 1) % transport.size();
      auto out = random_bytes(static_cast<std::uint64_t>(transport.rank()), 4'000'000);
      std::vector<std::byte> in(out.size());
      const Message send = send_to(next, 1, out);
      const Ticket sent = transport.post({&send, 1});
      const TimePoint until = Clock::now() + milliseconds(50);
      while (Clock::now() < until) transport.idle(until);
      const Message receive = receive_from(previous, 1, in);
      wait(transport, transport.post({&receive, 1}));
      wait(transport, sent);
      require(in == random_bytes(static_cast<std::uint64_t>(previous), in.size()), "crossing messages are intact");
    });
  }
}

TEST_P(UcxDelivery, MatchesByTagInAnyOrderAndByOrderWithinATag) {
  run(2, [](Transport& transport) {
    constexpr std::uint64_t kTags = 64;
    constexpr std::uint64_t kFar = (std::uint64_t{1} << 48) - kTags;  // the highest tags there are
    const auto content = [](std::uint64_t tag, std::uint64_t turn) {
      return random_bytes(seed_of(tag, turn, 0), 1 + 700 * tag);
    };
    std::vector<std::vector<std::byte>> data;
    std::vector<Ticket> tickets;
    for (std::uint64_t i = 0; i < 2 * kTags; ++i) {
      const bool is_sender = transport.rank() == 0;
      const std::uint64_t tag = is_sender ? i % kTags : kTags - 1 - i % kTags;
      data.push_back(content(tag, i / kTags));
      if (!is_sender) std::fill(data.back().begin(), data.back().end(), std::byte{});
      const Message message =
          is_sender ? send_to(1, kFar + tag, data.back()) : receive_from(0, kFar + tag, data.back());
      tickets.push_back(transport.post({&message, 1}));
    }
    for (const Ticket ticket : tickets) wait(transport, ticket);
    for (std::uint64_t i = 0; transport.rank() == 1 && i < 2 * kTags; ++i)
      require(data[i] == content(kTags - 1 - i % kTags, i / kTags), "message " + std::to_string(i) + " met its like");
  });
}

/// One of many back-to-back rounds: a size and contents that both ends know, and now and then a pause.
void random_round(Transport& transport, std::uint64_t number, const std::vector<std::byte>& source,
                  std::vector<std::vector<std::byte>>& in) {
  std::mt19937_64 common(number);
  const std::size_t bytes = 1 + (common() % 1'000'000 >> common() % 20);
  const auto size = static_cast<std::size_t>(transport.size());
  const auto rank = static_cast<std::size_t>(transport.rank());
  const auto content = [&](std::size_t from, std::size_t to) {
    return std::span(source).subspan((number * 31 + from * 7 + to) % (source.size() - bytes), bytes);
  };
  std::vector<Message> round;
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const auto out = content(rank, peer);
    round.push_back(receive_from(static_cast<int>(peer), number % 3, std::span(in[peer]).first(bytes)));
    round.push_back(send_to(static_cast<int>(peer), number % 3, {const_cast<std::byte*>(out.data()), out.size()}));
  }
  std::mt19937_64 own(number * size + rank);
  if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2'000));
  wait(transport, transport.post(round));
  for (std::size_t peer = 0; peer < size; ++peer)
    require(peer == rank || std::memcmp(in[peer].data(), content(peer, rank).data(), bytes) == 0,
            "round " + std::to_string(number) + " of " + std::to_string(bytes) + " bytes is right");
}

TEST_P(UcxDelivery, SurvivesTenThousandRoundsOfRandomSizesAndDelays) {
  run(
      3,
      [](Transport& transport) {
        const auto source = random_bytes(1, 2'000'000);
        std::vector<std::vector<std::byte>> in(3, std::vector<std::byte>(1'000'001));
        for (std::uint64_t number = 0; number < 10'000; ++number) random_round(transport, number, source, in);
      },
      milliseconds(120'000));
}

TEST_P(UcxDelivery, ServesTwoThreadsAtOnce) {
  run(3, [](Transport& transport) {
    std::vector<std::exception_ptr> failures(2);
    std::vector<std::thread> threads;
    std::atomic<bool> is_over{false};
    for (std::size_t thread = 0; thread < 2; ++thread)
      threads.emplace_back([&, thread] {
        try {
          for (std::uint64_t turn = 0; turn < 1'000; ++turn) {
            auto out = random_bytes(seed_of(thread, turn, 0), 1 + (turn * 977) % 30'000);
            std::vector<std::vector<std::byte>> in(3, std::vector<std::byte>(out.size()));
            std::vector<Message> round;
            for (int peer = 0; peer < 3; ++peer) {
              if (peer == transport.rank()) continue;
              round.push_back(receive_from(peer, 10 + thread, in[static_cast<std::size_t>(peer)]));
              round.push_back(send_to(peer, 10 + thread, out));
            }
            wait(transport, transport.post(round));
            for (int peer = 0; peer < 3; ++peer)
              require(peer == transport.rank() || in[static_cast<std::size_t>(peer)] == out,
                      "thread " + std::to_string(thread) + " gets its own message " + std::to_string(turn));
          }
        } catch (const std::exception&) {
          failures[thread] = std::current_exception();
        }
      });
    std::thread waker([&] {
      while (!is_over) {
        transport.wake();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
    for (std::thread& thread : threads) thread.join();
    is_over = true;
    waker.join();
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
  });
}

TEST_P(UcxDelivery, KeepsThreeTransportsApart) {
  const Network network = GetParam();
  const auto results = run_ranks(2, [&](const Rendezvous& rendezvous) {
    std::vector<std::unique_ptr<Transport>> transports;
    for (int index = 0; index < 3; ++index) {
      Rendezvous own = rendezvous;
      own.address += std::to_string(index);
      transports.push_back(network.open(own));
    }
    std::vector<std::exception_ptr> failures(transports.size());
    std::vector<std::thread> threads;
    for (std::size_t index = 0; index < transports.size(); ++index)
      threads.emplace_back([&, index] {
        try {
          const auto source = random_bytes(index, 2'000'000);
          std::vector<std::vector<std::byte>> in(2, std::vector<std::byte>(1'000'001));
          for (std::uint64_t number = 0; number < 500; ++number) random_round(*transports[index], number, source, in);
        } catch (const std::exception&) {
          failures[index] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
    // Closed in opposite orders, a close that waits inside would block for ever; from threads it must not.
    std::vector<std::thread> closers;
    for (auto& transport : transports) closers.emplace_back([&transport] { transport.reset(); });
    for (std::thread& closer : closers) closer.join();
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
}

TEST_P(UcxDelivery, WorksWithSixteenRanks) {
  run(16, [](Transport& transport) {
    exchange_with_all(transport, 10'000, 0);
    exchange_with_all(transport, 100'001, 1);
  });
}

}  // namespace
}  // namespace tightwire::testing::ucx_delivery_test
