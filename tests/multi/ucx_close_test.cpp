// How a transport ends and gives up: in order together, alone with work unfinished, on purpose, and stopped for a
// while.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <tightwire/workspace.hpp>

#include "ucx_support.hpp"

namespace tightwire::testing::ucx_close_test {
namespace {

using std::chrono::milliseconds;

class UcxClose : public ::testing::TestWithParam<Network> {
 protected:
  std::unique_ptr<Transport> open(const Rendezvous& rendezvous) const { return GetParam().open(rendezvous); }

  static void expect_silence(const std::vector<RankResult>& results) {
    EXPECT_EQ(complaints(results), "");
    for (const RankResult& result : results) EXPECT_EQ(result.text, "");
  }
};

INSTANTIATE_TEST_SUITE_P(Networks, UcxClose, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

/// Waits for a word that never comes and expects the loss of `rank` instead, with `text` and soon.
void require_loss(Transport& transport, int from, const std::string& text) {
  std::byte word{};
  const Message message = receive_from(from, 77, {&word, 1});
  const TimePoint began = Clock::now();
  try {
    wait(transport, transport.post({&message, 1}));
  } catch (const Error& error) {
    require(error.code() == Errc::peer_lost && error.what() == text, "'" + text + "' is thrown; got " + error.what());
    require(Clock::now() - began < std::chrono::seconds(1), "the loss is noticed within a second");
    return;
  }
  throw std::runtime_error("a word came that nobody sent");
}

TEST_P(UcxClose, DeliversWhatWasSentBeforeTheSenderCloses) {
  expect_silence(run_ranks(3, [&](const Rendezvous& rendezvous) {
    auto transport = open(rendezvous);
    // Rank 0 is done as soon as UCX has taken the messages; the others come for them late.
    constexpr std::size_t kCount = 300;
    std::vector<std::vector<std::byte>> data(kCount);
    for (std::size_t i = 0; i < kCount; ++i) data[i] = random_bytes(i, 1 + i * 13);
    if (rendezvous.rank == 0) {
      std::vector<Message> round;
      for (int peer : {1, 2})
        for (std::size_t i = 0; i < kCount; ++i) round.push_back(send_to(peer, i, data[i]));
      wait(*transport, transport->post(round));
      transport.reset();
      return 0;
    }
    std::this_thread::sleep_for(milliseconds(100));
    for (std::size_t i = 0; i < kCount; ++i) {
      std::vector<std::byte> in(data[i].size());
      const Message message = receive_from(0, i, in);
      wait(*transport, transport->post({&message, 1}));
      require(in == data[i], "message " + std::to_string(i) + " arrived although its sender is closing");
    }
    return 0;
  }));
}

TEST_P(UcxClose, ClosesSafelyWithRoundsUnfinished) {
  for (const std::size_t bytes : {100UL, 4UL << 20})
    expect_silence(run_ranks(3, [&](const Rendezvous& rendezvous) {
      auto transport = open(rendezvous);
      barrier(*transport);
      if (rendezvous.rank != 1) {
        require_loss(*transport, 1, "rank 1 lost: it closed its transport with messages unfinished");
        return 0;
      }
      std::vector<Message> round;
      std::vector<std::vector<std::byte>> data(4, std::vector<std::byte>(bytes));
      for (std::size_t i = 0; i < data.size(); ++i)
        round.push_back(i % 2 == 0 ? receive_from(0, i, data[i]) : send_to(2, i, data[i]));
      transport->post(round);
      const TimePoint began = Clock::now();
      transport.reset();
      require(Clock::now() - began < std::chrono::seconds(1), "closing with unfinished rounds does not wait");
      for (auto& block : data) std::fill(block.begin(), block.end(), std::byte{0xEE});
      std::this_thread::sleep_for(milliseconds(50));
      for (const auto& block : data)
        require(std::all_of(block.begin(), block.end(), [](std::byte value) { return value == std::byte{0xEE}; }),
                "nobody writes into memory after the transport is gone");
      return 0;
    }));
}

TEST_P(UcxClose, TellsTheReasonOfAnAbortToSleepersAndToThoseWhoComeLater) {
  expect_silence(run_ranks(3, [&](const Rendezvous& rendezvous) {
    auto transport = open(rendezvous);
    barrier(*transport);
    if (rendezvous.rank == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      transport->abort("out of memory in step 7");
      try {
        transport->done(0);
      } catch (const Error& error) {
        require(std::string(error.what()) == "rank 1 (this rank) gave up: out of memory in step 7", error.what());
        return 0;
      }
      throw std::runtime_error("an aborted transport goes on");
    }
    if (rendezvous.rank == 2) std::this_thread::sleep_for(milliseconds(300));
    require_loss(*transport, 1, "rank 1 lost: out of memory in step 7");
    return 0;
  }));
}

TEST_P(UcxClose, AbortFromAnotherThreadEndsAWait) {
  expect_silence(run_ranks(2, [&](const Rendezvous& rendezvous) {
    auto transport = open(rendezvous);
    barrier(*transport);
    std::jthread other;  // joined whatever happens
    if (rendezvous.rank == 0)
      other = std::jthread([&] {
        std::this_thread::sleep_for(milliseconds(100));
        transport->abort("the user pressed stop");
      });
    require_loss(*transport, 1 - rendezvous.rank,
                 rendezvous.rank == 0 ? "rank 0 (this rank) gave up: the user pressed stop"
                                      : "rank 0 lost: the user pressed stop");
    return 0;
  }));
}

TEST_P(UcxClose, TakesNoStoppedRankForDead) {
  const Shared<std::atomic<int>> ready;
  expect_silence(run_ranks(3,
                           [&](const Rendezvous& rendezvous) {
                             auto transport = open(rendezvous);
                             barrier(*transport);
                             ++*ready;
                             std::vector<std::vector<std::byte>> in(3, std::vector<std::byte>(1 << 20));
                             std::vector<std::byte> out(in[0].size());
                             const TimePoint until = Clock::now() + std::chrono::seconds(3);
                             for (std::uint64_t turn = 0, over = 0; over == 0; ++turn) {
                               std::vector<Message> round;
                               // Rank 0 alone says when to end, or ranks could disagree by a round.
                               out[0] = std::byte{Clock::now() >= until && rendezvous.rank == 0};
                               for (int peer = 0; peer < 3; ++peer) {
                                 if (peer == rendezvous.rank) continue;
                                 round.push_back(receive_from(peer, turn, in[static_cast<std::size_t>(peer)]));
                                 round.push_back(send_to(peer, turn, out));
                               }
                               wait(*transport, transport->post(round));
                               over = static_cast<std::uint64_t>(rendezvous.rank == 0 ? out[0] : in[0][0]);
                             }
                             return 0;
                           },
                           {.meanwhile = [&](const std::vector<pid_t>& ids) {
                             while (*ready < 3) std::this_thread::sleep_for(milliseconds(10));
                             for (const std::size_t rank : {2U, 0U}) {
                               std::this_thread::sleep_for(milliseconds(100));
                               kill(ids[rank], SIGSTOP);
                               std::this_thread::sleep_for(milliseconds(rank == 2 ? 2'000 : 500));
                               kill(ids[rank], SIGCONT);
                             }
                           }}));
}

TEST_P(UcxClose, DetachingMemoryInUseGivesUpAndKeepsUcxOut) {
  expect_silence(run_ranks(2, [&](const Rendezvous& rendezvous) {
    auto transport = open(rendezvous);
    std::vector<std::byte> memory(4 << 20);
    transport->attach(memory);
    barrier(*transport);
    if (rendezvous.rank == 1) {
      require_loss(*transport, 0, "rank 0 lost: it took away memory that unfinished messages use");
      transport->detach(memory);
      return 0;
    }
    const Message message = receive_from(1, 5, std::span(memory).subspan(100, 1 << 20));
    transport->post({&message, 1});
    transport->detach(memory);
    require_loss(*transport, 1, "rank 0 (this rank) gave up: it took away memory that unfinished messages use");
    return 0;
  }));
}

/// A child's calls are refused, and whatever it does to its copy its parent's goes on.
TEST_P(UcxClose, IsInertInAForkedChild) {
  expect_silence(run_ranks(2, [&](const Rendezvous& rendezvous) {
    auto transport = open(rendezvous);
    const int peer = 1 - rendezvous.rank;
    std::vector<std::byte> in(300'000), out(in.size(), std::byte{7}), other(100);
    transport->attach(out);
    const Message round[] = {receive_from(peer, 5, in), send_to(peer, 5, out)};
    const Message word = receive_from(peer, 6, other);
    const Ticket waiting = transport->post({&word, 1});
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      const auto is_refused = [](const auto& call) { return error_of(call).code() == Errc::unsupported; };
      const bool refused =
          is_refused([&] { transport->post(round); }) && is_refused([&] { transport->done(waiting); }) &&
          is_refused([&] { transport->idle(Clock::now()); }) && is_refused([&] { transport->attach_pages(in); }) &&
          is_refused([&] { static_cast<void>(transport->waiting_for(waiting)); });
      transport->wake();
      transport->detach(out);
      transport->abort("a child");
      transport.reset();
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "calls in the child are refused");
    for (int turn = 0; turn < 3; ++turn) wait(*transport, transport->post(round));
    require(in == out, "the parent and its peer go on");
    const Message last = send_to(peer, 6, other);
    wait(*transport, transport->post({&last, 1}));
    wait(*transport, waiting);
    transport->detach(out);
    barrier(*transport);
    return 0;
  }));
}

/// A peer may be reading what it was lent, and hear of the end only later.
TEST_P(UcxClose, DetachingAfterAFailureLeavesWhatPeersRead) {
  const Shared<std::atomic<int>> detached;
  expect_silence(run_ranks(2, [&](const Rendezvous& rendezvous) {
    auto transport = open(rendezvous);
    constexpr std::size_t kFrame = 1UL << 20;
    const Workspace memory(2 * kFrame);
    transport->attach_pages(memory.pages());
    std::fill(memory.data(), memory.data() + kFrame, std::byte{77});
    const std::byte* place = memory.data() + kFrame;
    Message message = rendezvous.rank == 0 ? send_to(1, 4, memory.span().first(kFrame))
                                           : receive_from(0, 4, memory.span().last(kFrame));
    if (rendezvous.rank == 1) message.place = &place;
    const Ticket ticket = transport->post({&message, 1});
    if (rendezvous.rank == 1) wait(*transport, ticket);
    ++*detached;
    while (*detached < 2) transport->idle(Clock::now() + milliseconds(1));  // UCX sends by its sender's progress
    if (rendezvous.rank == 0) {
      if (GetParam().is_shm) require(!transport->done(ticket), "its frame is lent");
      transport->abort("of reason 19");
      transport->detach(memory.pages());
      std::fill(memory.data(), memory.data() + kFrame, std::byte{78});
      ++*detached;
    }
    while (*detached < 3) std::this_thread::sleep_for(milliseconds(1));
    if (rendezvous.rank == 0) return 0;
    require(std::count(place, place + kFrame, std::byte{77}) == std::ptrdiff_t{kFrame}, "what was lent is still there");
    transport->detach(memory.pages());
    return 0;
  }));
}

std::set<std::string> shared_memory_left() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  std::ifstream segments("/proc/sysvipc/shm");
  for (std::string line; std::getline(segments, line);) names.insert(line.substr(0, 22));
  return names;
}

TEST_P(UcxClose, LeavesNothingInSharedMemoryWhenAllAreKilled) {
  const auto before = shared_memory_left();
  const Shared<std::atomic<int>> ready;
  const auto results = run_ranks(3,
                                 [&](const Rendezvous& rendezvous) {
                                   auto transport = open(rendezvous);
                                   barrier(*transport);
                                   ++*ready;
                                   for (;;) transport->idle(Clock::now() + milliseconds(100));
                                   return 0;
                                 },
                                 {.meanwhile = [&](const std::vector<pid_t>& ids) {
                                   while (*ready < 3) std::this_thread::sleep_for(milliseconds(10));
                                   for (const pid_t id : ids) kill(id, SIGSTOP);  // or one may see another's end
                                   for (const pid_t id : ids) kill(id, SIGKILL);
                                 }});
  for (const RankResult& result : results) EXPECT_EQ(result.signal, SIGKILL) << result.text;
  // Other programs may come and go meanwhile; what stays is ours.
  std::vector<std::string> left;
  for (int attempt = 0; attempt < 30; ++attempt) {
    left.clear();
    const auto after = shared_memory_left();
    std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(left));
    if (left.empty()) break;
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_TRUE(left.empty()) << left.front();
}

}  // namespace
}  // namespace tightwire::testing::ucx_close_test
