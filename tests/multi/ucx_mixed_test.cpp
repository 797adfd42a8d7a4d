// Shared memory inside nodes and UCX across in one job. The other tests of transports between processes run over it,
// too.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <thread>

#include <tightwire/collective/group_transport.hpp>
#include <tightwire/open_transport.hpp>
#include <tightwire/testing/transport_conformance.hpp>
#include <tightwire/workspace.hpp>

#include "ucx_support.hpp"

namespace tightwire::testing::ucx_mixed_test {
namespace {

const Network kMixed = all_networks().back();

void run(const std::function<void(const Rendezvous&)>& body) {
  const auto results = run_ranks(4, [&](const Rendezvous& rendezvous) {
    body(rendezvous);
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
}

void require_in(const std::string& part, const std::string& text) {
  require(text.find(part) != std::string::npos, part + " in: " + text);
}

TEST(UcxMixed, KeepsWhatATransportPromises) {
  for (const TransportCheck& check : transport_checks()) {
    SCOPED_TRACE(check.name);
    run([&](const Rendezvous& rendezvous) {
      int turn = 0;
      check.run([&]() -> std::shared_ptr<Transport> {
        Rendezvous own = rendezvous;
        own.address += std::to_string(turn++);
        return kMixed.open(own, {0, 0, 1, 1});
      });
    });
  }
}

TEST(UcxMixed, IsTakenWhereSomeRanksShareMemory) {
  run([](const Rendezvous& rendezvous) {
    if (rendezvous.rank == 3) prctl(PR_SET_DUMPABLE, 0);
    setenv("UCX_TLS", "tcp,self", 1);
    const auto transport = open_transport(rendezvous, "auto");
    const char* const inside = rendezvous.rank == 3 ? "inside shm: alone; across ucx " : "inside shm: 3 ranks";
    require_in("mixed, 2 nodes of 3+1: " + std::string(inside), transport->describe());
    require_in("tcp, checksums", transport->describe());
    require(transport->node() == (rendezvous.rank == 3 ? 2u : 1u), "nodes are those of who shares memory");
    const bool is_rank_3_far = rendezvous.rank == 3 || transport->has_wire_to(3);
    require(is_rank_3_far && transport->has_wire_to(0) == (rendezvous.rank == 3), "wires are between nodes");
    require(!transport->shares_memory() && transport->checksum({}) != 0, "some frames go over a wire");
    barrier(*transport);
  });
}

TEST(UcxMixed, OfOneNodeHasNoWire) {
  run([](const Rendezvous& rendezvous) {
    const auto transport = open_transport(rendezvous, "mixed");
    require_in("mixed, 1 node of 4: inside shm: 4 ranks", transport->describe());
    require(transport->shares_memory() && transport->checksum({}) == 0, "all goes through memory");
    barrier(*transport);
  });
}

TEST(UcxMixed, RefusesNodesThatRanksSeeOtherwise) {
  run([](const Rendezvous& rendezvous) {
    const Error error = error_of([&] {
      kMixed.open(rendezvous, rendezvous.rank == 2 ? std::vector{0, 0, 0, 1} : std::vector{0, 0, 1, 1});
    });
    require(error.code() == Errc::mismatch, error.what());
    for (const char* part : {"rank 0 has 0 1 | 2 3", "rank 2 has 0 1 2 | 3"}) require_in(part, error.what());
  });
}

/// What one node cannot, ranks of the others hear, too: all throw, or take UCX where that was asked for.
TEST(UcxMixed, ANodeThatCannotShareMemoryIsKnownToAllNodes) {
  run([](const Rendezvous& rendezvous) {
    setenv("UCX_TLS", "tcp,self", 1);
    const rlimit limit = {.rlim_cur = std::size_t{3} << 30, .rlim_max = RLIM_INFINITY};
    if (rendezvous.rank == 1) require(setrlimit(RLIMIT_AS, &limit) == 0, "a limit is set");
    Rendezvous own = rendezvous;
    const Error error = error_of([&] { kMixed.open(own, {0, 0, 1, 1}); });
    require_in("rank 1 cannot open the memory of rank 0", error.what());
    require(error.code() == Errc::no_memory, error.what());
    own.address += "2";
    if (rendezvous.rank == 3) prctl(PR_SET_DUMPABLE, 0);
    const auto transport = open_transport(own, "auto");
    require(transport->describe().starts_with("ucx "), transport->describe());
    barrier(*transport);
  });
}

TEST(UcxMixed, HasTheLimitsOfItsParts) {
  const Rendezvous job{.rank = 0, .size = 65'537, .address = "file:///nowhere/at/all", .key = "k", .timeout = {}};
  const Error error = error_of([&] { mixed::open(job); });
  EXPECT_EQ(error.code(), Errc::unsupported);
  EXPECT_STREQ(error.what(), "ucx: at most 65536 ranks, got 65537");
}

/// Rank 0, through which all hear of the dead, is stopped: each rank that shares memory with one sees its end by
/// itself, before it could take another for lost that gave up because of that.
TEST(UcxMixed, NamesWhoDiedThoughRankZeroIsStopped) {
  const Shared<std::atomic<int>> ready;
  const auto results =
      run_ranks(4,
                [&](const Rendezvous& rendezvous) {
                  const auto transport = kMixed.open(rendezvous, {0, 1, 1, 2});
                  barrier(*transport);
                  ++*ready;
                  const Error error = error_of([&] {
                    for (;;) {
                      transport->done(0);
                      transport->idle(Clock::now() + std::chrono::seconds(1));
                    }
                  });
                  require_in("rank 1 lost: ", error.what());
                  std::_Exit(0);
                  return 0;
                },
                {.meanwhile = [&](const std::vector<pid_t>& ids) {
                  const auto pause = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
                  for (int turn = 0; *ready < 4 && turn < 1'000; ++turn) pause(10);
                  kill(ids[0], SIGSTOP);
                  pause(50);
                  kill(ids[1], SIGKILL);
                  pause(1'500);
                  kill(ids[0], SIGKILL);
                }});
  for (const std::size_t rank : {2U, 3U}) EXPECT_EQ(results[rank].exit_status, 0) << results[rank].text;
}

/// Tells by when it would close.
class ClosingPart final : public TransportPart {
 public:
  explicit ClosingPart(TimePoint& closes_by) : closes_by_(closes_by) {}
  ~ClosingPart() override { closes_by_ = closing_until(std::chrono::hours(1)); }
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 2; }
  std::string describe() const override { return ""; }
  void detach(std::span<std::byte> /*memory*/) noexcept override {}
  Ticket post(std::span<const Message> /*round*/) override { return 0; }
  bool settle(Ticket /*ticket*/) override { return true; }
  bool look() override { return true; }
  void check_peers() override {}
  void hear() override {}
  void idle(TimePoint /*until*/) override {}
  void wake() noexcept override {}
  std::chrono::milliseconds going_to_sleep() override { return {}; }
  void end_sleep() noexcept override {}
  std::array<int, 3> descriptors() const noexcept override { return {-1, -1, -1}; }
  bool uses(std::span<const std::byte> /*memory*/) const noexcept override { return false; }
  std::vector<int> silent(Ticket /*ticket*/) const override { return {}; }
  std::string waiting_for(Ticket /*ticket*/) const override { return ""; }
  void abort(std::string_view /*reason*/) noexcept override {}

 private:
  TimePoint& closes_by_;
};

TEST(UcxMixed, ClosesBothPartsByOneDeadline) {
  TimePoint inside, across;
  std::make_unique<mixed::MixedTransport>(0, Nodes{.ranks = {{0}, {1}}}, std::make_unique<ClosingPart>(inside),
                                          std::make_unique<ClosingPart>(across), std::chrono::seconds(2))
      .reset();
  EXPECT_EQ(inside, across);
  EXPECT_LE(inside, Clock::now() + std::chrono::seconds(2));
}

TEST(UcxMixed, ChecksumsAreForFramesThatLeaveTheNode) {
  run([](const Rendezvous& rendezvous) {
    const auto transport = kMixed.open(rendezvous, {0, 0, 1, 1});
    const int near = rendezvous.rank ^ 1;
    const int far = rendezvous.rank ^ 2;
    const GroupTransport node(*transport, {rendezvous.rank, near});
    const GroupTransport rail(*transport, {rendezvous.rank, far});
    require(node.checksum({}) == 0 && node.shares_memory(), "inside there is no wire");
    require(rail.checksum({}) == transport->checksum({}) && !rail.shares_memory(), "across there is one");
    barrier(*transport);
  });
}

/// One wait for both parts: whoever has news wakes it. The longest sleep is so long that its end does not pass for
/// that.
TEST(UcxMixed, SleepsThroughNoMessageOfEitherPart) {
  run([](const Rendezvous& rendezvous) {
    const auto transport = kMixed.open(rendezvous, {0, 0, 1, 1}, std::chrono::seconds(5));
    for (int turn = 0; turn < 4; ++turn) {
      std::array<TimePoint::rep, 3> sent_at{};
      const auto clock = [&](int sender) {
        return std::as_writable_bytes(std::span(sent_at).subspan(static_cast<std::size_t>(sender), 1));
      };
      if (rendezvous.rank == 0) {
        // From a rank of the same node, and later from another's, too late to wake it for the first as well.
        const Message receives[] = {receive_from(1, 9, clock(1)), receive_from(2, 9, clock(2))};
        const Ticket tickets[] = {transport->post({&receives[0], 1}), transport->post({&receives[1], 1})};
        for (const std::size_t sender : {1u, 2u}) {
          wait(*transport, tickets[sender - 1]);
          const auto late = Clock::now().time_since_epoch() - Clock::duration(sent_at[sender]);
          require(late < std::chrono::milliseconds(50), "rank " + std::to_string(sender) + " wakes it at once");
        }
      } else if (rendezvous.rank != 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(rendezvous.rank == 1 ? 10 : 150));
        sent_at[static_cast<std::size_t>(rendezvous.rank)] = Clock::now().time_since_epoch().count();
        const Message send = send_to(0, 9, clock(rendezvous.rank));
        wait(*transport, transport->post({&send, 1}));
      }
      barrier(*transport);
    }
  });
}

/// A peer's bytes are lent from its memory, and others' are not, in one round.
TEST(UcxMixed, LendsWhatPeersOfItsNodeHave) {
  run([](const Rendezvous& rendezvous) {
    constexpr std::size_t kBytes = 300'000;
    const auto transport = kMixed.open(rendezvous, {0, 0, 1, 1});
    const Workspace memory(5 * kBytes);
    transport->attach_pages(memory.pages());
    const auto part = [&](int index) {
      return memory.span().subspan(static_cast<std::size_t>(index) * kBytes, kBytes);
    };
    for (int turn = 0; turn < 3; ++turn) {
      std::fill_n(part(4).data(), kBytes, std::byte(10 * turn + rendezvous.rank));
      std::array<const std::byte*, 4> places{};
      std::vector<Message> round;
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == rendezvous.rank) continue;
        const std::byte*& place = places[static_cast<std::size_t>(peer)] = part(peer).data();
        round.push_back(receive_from(peer, 7, part(peer)));
        round.back().place = &place;
      }
      const Ticket received = transport->post(round);
      for (Message& message : round) message = send_to(message.peer, 7, part(4));
      const Ticket sent = transport->post(round);
      wait(*transport, received);
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == rendezvous.rank) continue;
        const std::byte* const place = places[static_cast<std::size_t>(peer)];
        require((place == part(peer).data()) == transport->has_wire_to(peer), "lent inside, and there alone");
        require(std::count(place, place + kBytes, std::byte(10 * turn + peer)) == kBytes, "it is what was sent");
      }
      transport->release(received);
      wait(*transport, sent);
    }
    transport->detach(memory.pages());
    barrier(*transport);
  });
}

}  // namespace
}  // namespace tightwire::testing::ucx_mixed_test
