#include <sys/socket.h>

#include <fstream>

#include "rank_process.hpp"
#include "rendezvous/standing_membership.hpp"

namespace tightwire::testing::rendezvous_liveness_test {
namespace {

/// Four ranks in processes of their own, joined.
class LivingJob {
 public:
  explicit LivingJob(const std::function<RankProcess::Body(int rank)>& body_of, int size = 4) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(
          std::make_unique<RankProcess>(job(rank, size, "local://" + directory_.path("job")), body_of(rank)));
    }
    for (const auto& rank : ranks_) EXPECT_TRUE(rank->has_joined());
  }
  RankProcess& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

 private:
  TemporaryDirectory directory_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

std::string wait_for_any_loss(Membership& membership) { return sleep_until_loss(membership); }

std::string stay(Membership& /*membership*/) {
  ::pause();
  return {};
}

class LostRank : public ::testing::TestWithParam<int> {};

TEST_P(LostRank, KilledIsNoticedByAllOthersWhileTheySleep) {
  const HardLimit limit(20);
  const int victim = GetParam();
  LivingJob ranks([](int) { return wait_for_any_loss; });
  std::this_thread::sleep_for(milliseconds(50));
  const auto killed = now_ms();
  ranks[victim].kill(SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    const NoticedLoss loss = parse_loss(ranks[rank].report());
    EXPECT_EQ(loss.text, std::to_string(victim) + " its process ended") << "on rank " << rank;
    EXPECT_LT(loss.at_ms - killed, 500) << "on rank " << rank;
  }
}

TEST_P(LostRank, ExitWithoutLeavingIsALoss) {
  const HardLimit limit(20);
  const int victim = GetParam();
  LivingJob ranks([&](int rank) -> RankProcess::Body {
    if (rank == victim) return [](Membership&) { return std::string("done"); };
    return wait_for_any_loss;
  });
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    const std::string text = parse_loss(ranks[rank].report()).text;
    EXPECT_EQ(text, std::to_string(victim) + " its process ended") << "on rank " << rank;
  }
}

TEST_P(LostRank, GivingUpReachesAllOthersThoughTheCallerEndsAtOnce) {
  const HardLimit limit(20);
  const int quitter = GetParam();
  LivingJob ranks([&](int rank) -> RankProcess::Body {
    if (rank != quitter) return wait_for_any_loss;
    return [](Membership& membership) -> std::string {
      membership.give_up("the data set\nis gone");
      ::_exit(3);
    };
  });
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == quitter) continue;
    const std::string text = parse_loss(ranks[rank].report()).text;
    EXPECT_EQ(text, std::to_string(quitter) + " the data set is gone") << "on rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LostRank, ::testing::Values(0, 2));

TEST(Liveness, AForkedChildDoesNotHideTheDeathOfItsParent) {
  const HardLimit limit(20);
  LivingJob ranks([](int rank) -> RankProcess::Body {
    if (rank != 1) return wait_for_any_loss;
    return [](Membership& membership) -> std::string {
      if (::fork() == 0) {
        // As a data loading worker: outlives its parent, and what it does with its copy must not matter.
        membership.give_up("from the child");
        membership.leave(milliseconds(0));
        std::this_thread::sleep_for(milliseconds(1500));
        ::_exit(0);
      }
      std::this_thread::sleep_for(milliseconds(100));
      ::kill(::getpid(), SIGKILL);
      return {};
    };
  });
  const auto begin = now_ms();
  for (const int rank : {0, 2, 3}) {
    const NoticedLoss loss = parse_loss(ranks[rank].report());
    EXPECT_EQ(loss.text, "1 its process ended") << "on rank " << rank;
    EXPECT_LT(loss.at_ms - begin, 1000) << "on rank " << rank;
  }
}

TEST(Liveness, DestroyingItInAForkedChildDisturbsNobody) {
  const HardLimit limit(20);
  LivingJob ranks(
      [](int rank) -> RankProcess::Body {
        return [rank](Membership& membership) -> std::string {
          if (rank == 1) {
            const pid_t child = ::fork();
            if (child == 0) {
              ::alarm(5);
              membership.~Membership();
              ::_exit(0);
            }
            int status = -1;
            ::waitpid(child, &status, 0);
            if (status != 0) return "child ended with " + std::to_string(status);
          }
          membership.leave(milliseconds(5000));
          return membership.loss() ? membership.loss()->reason : "no loss";
        };
      },
      2);
  EXPECT_EQ(ranks[0].report(), "no loss");
  EXPECT_EQ(ranks[1].report(), "no loss");
}

TEST(Liveness, AStoppedProcessIsNotLost) {
  const HardLimit limit(20);
  LivingJob ranks([](int) -> RankProcess::Body {
    return [](Membership& membership) {
      const bool early = wait_for_loss(membership, milliseconds(2200)).has_value();
      membership.leave(milliseconds(5000));
      return std::string(early ? "loss" : "no loss") + (membership.loss() ? ", then a loss" : ", none later");
    };
  });
  std::this_thread::sleep_for(milliseconds(50));  // so that all are in the middle of it
  for (const int rank : {0, 2}) ranks[rank].kill(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(2000));
  for (const int rank : {0, 2}) ranks[rank].kill(SIGCONT);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks[rank].report(), "no loss, none later");
}

TEST(Liveness, LeavingWaitsForAllAndThenTheEndIsNoLoss) {
  const HardLimit limit(20);
  LivingJob ranks([](int rank) -> RankProcess::Body {
    return [rank](Membership& membership) {
      // Rank 3 leaves last; rank 0, through which all goes, ends first.
      std::this_thread::sleep_for(milliseconds(rank == 3 ? 300 : 0));
      const auto begin = SteadyClock::now();
      membership.leave(milliseconds(5000));
      const bool waited = since(begin) >= milliseconds(200);
      if (rank != 0) std::this_thread::sleep_for(milliseconds(100));
      return std::string(waited ? "waited" : "did not wait") + (membership.loss() ? ", loss" : ", no loss");
    };
  });
  for (const int rank : {0, 1, 2}) EXPECT_EQ(ranks[rank].report(), "waited, no loss") << "on rank " << rank;
  EXPECT_EQ(ranks[3].report(), "did not wait, no loss");
}

TEST(Liveness, LeavingEndsWithTheLimit) {
  const HardLimit limit(20);
  LivingJob ranks([](int rank) -> RankProcess::Body {
    if (rank == 2) return stay;
    return [](Membership& membership) {
      const auto begin = SteadyClock::now();
      membership.leave(milliseconds(300));
      return std::string(since(begin) < milliseconds(290)   ? "early"
                         : since(begin) < milliseconds(800) ? "in time"
                                                            : "late") +
             (membership.loss() ? ", loss" : ", no loss");
    };
  });
  // Rank 0 may be gone when the others' limits end, so these may see that nobody counts any more.
  EXPECT_EQ(ranks[0].report(), "in time, no loss");
  for (const int rank : {1, 3}) {
    const std::string report = ranks[rank].report();
    EXPECT_TRUE(report == "in time, no loss" || report == "early, no loss") << report;
  }
}

TEST(Liveness, LeavingEndsWhenARankIsLost) {
  const HardLimit limit(20);
  LivingJob ranks([](int rank) -> RankProcess::Body {
    if (rank == 2) return stay;
    return [](Membership& membership) {
      membership.leave(milliseconds(8000));
      return (membership.loss() ? membership.loss()->reason : "no loss") + " @" + std::to_string(now_ms());
    };
  });
  std::this_thread::sleep_for(milliseconds(100));
  const auto killed = now_ms();
  ranks[2].kill(SIGKILL);
  for (const int rank : {0, 1, 3}) {
    const NoticedLoss loss = parse_loss(ranks[rank].report());
    EXPECT_EQ(loss.text, "its process ended") << "on rank " << rank;
    EXPECT_LT(loss.at_ms - killed, 500) << "on rank " << rank;
  }
}

TEST(Liveness, WhoLeftByItselfIsNoLoss) {
  const HardLimit limit(20);
  for (const int first : {2, 0}) {
    LivingJob ranks([first](int rank) -> RankProcess::Body {
      return [rank, first](Membership& membership) {
        if (rank == first) {
          membership.leave(milliseconds(0));
          return std::string();
        }
        const bool lost = wait_for_loss(membership, milliseconds(200)).has_value();
        // Without rank 0 nobody counts who leaves, so there is nothing to wait for.
        const auto begin = SteadyClock::now();
        membership.leave(milliseconds(5000));
        return std::string(lost || membership.loss() ? "loss" : since(begin) < milliseconds(1500) ? "fine" : "waited");
      };
    });
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks[rank].report(), rank == first ? "" : "fine") << rank;
  }
}

TEST(Liveness, WhatCameTogetherWithTheEndOfJoiningIsNoticed) {
  const HardLimit limit(20);
  using rendezvous::Channel;
  using rendezvous::Descriptor;
  for (const bool with_frame : {true, false}) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Channel ours(Descriptor::make([&] { return ends[0]; }), 1024);
    Channel theirs(Descriptor::make([&] { return ends[1]; }), 1024);
    if (with_frame) {
      theirs.send(rendezvous::FrameType::lost, std::string(4, '\0') + "early");
    } else {
      theirs.close();
    }
    ours.receive();
    rendezvous::Joined joined{{"", ""}, {}};
    joined.peers.push_back({0, std::move(ours)});
    const rendezvous::StandingMembership membership(job(1, 2, "unused"), std::move(joined));
    const auto loss = wait_for_loss(membership, milliseconds(2000));
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, 0);
    EXPECT_EQ(loss->reason, with_frame ? "early" : "its process ended");
  }
}

/// How often each thread of that name has gone to sleep, in the order of their numbers.
std::vector<std::string> sleeps_of_threads(const std::string& name) {
  std::vector<std::string> counts;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::ifstream(task.path() / "comm") >> line;
    if (line != name) continue;
    std::ifstream status(task.path() / "status");
    while (std::getline(status, line)) {
      if (line.starts_with("voluntary_ctxt_switches")) counts.push_back(task.path().filename().string() + " " + line);
    }
  }
  return counts;
}

TEST(Liveness, TheThreadsSleepWhileAllIsWell) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  auto outcomes = join_all(whole_job(3, "local://" + directory.path("job")));
  std::this_thread::sleep_for(milliseconds(100));
  const auto before = sleeps_of_threads("tw-membership");
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(before.size(), 3U);
  EXPECT_EQ(sleeps_of_threads("tw-membership"), before);
  leave_all(outcomes);
}

TEST(Liveness, DestroyingWithoutLeavingTellsThePeersSo) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  for (const std::size_t first : {0U, 1U}) {
    auto outcomes = join_all(whole_job(2, "local://" + directory.path("job")));
    outcomes[first].membership.reset();
    const auto loss = wait_for_loss(*outcomes[1 - first].membership, milliseconds(2000));
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->rank, static_cast<int>(first));
    EXPECT_NE(loss->reason.find("without leaving"), std::string::npos) << loss->reason;
  }
}

TEST(Liveness, TheFirstLossStays) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  auto outcomes = join_all(whole_job(4, "local://" + directory.path("job")));
  outcomes[1].membership->give_up("first");
  for (const std::size_t rank : {0U, 2U, 3U}) {
    ASSERT_TRUE(wait_for_loss(*outcomes[rank].membership, milliseconds(2000)));
  }
  outcomes[2].membership->give_up("second");
  outcomes[1].membership.reset();
  std::this_thread::sleep_for(milliseconds(50));
  for (const std::size_t rank : {0U, 2U, 3U}) {
    EXPECT_EQ(outcomes[rank].membership->loss()->rank, 1);
    EXPECT_EQ(outcomes[rank].membership->loss()->reason, "first");
  }
}

TEST(Liveness, ReasonsAreCutAndCleaned) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  auto outcomes = join_all(whole_job(3, "local://" + directory.path("job")));
  outcomes[2].membership->give_up(std::string(100'000, 'x') + "\x1b[31m");
  for (const std::size_t rank : {0U, 1U}) {
    const auto loss = wait_for_loss(*outcomes[rank].membership, milliseconds(2000));
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->reason, std::string(4096, 'x'));
  }
}

TEST(Liveness, CallsFromManyThreadsAreSafe) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  auto outcomes = join_all(whole_job(3, "local://" + directory.path("job")));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    for (JoinOutcome& outcome : outcomes) {
      threads.emplace_back([&outcome, i] {
        for (int turn = 0; turn < 100; ++turn) static_cast<void>(outcome.membership->loss());
        if (i == 3 && outcome.membership->rank() == 1) outcome.membership->give_up("enough");
        outcome.membership->leave(milliseconds(2000));
      });
    }
  }
  const auto begin = SteadyClock::now();
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(since(begin), milliseconds(1500));
}

std::size_t entries_of(const char* directory) {
  const auto begin = std::filesystem::directory_iterator(directory);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

TEST(Liveness, DescriptorsAndThreadsStayFlat) {
  const HardLimit limit(60);
  const TemporaryDirectory directory;
  const auto round = [&] {
    auto outcomes = join_all(whole_job(3, "local://" + directory.path("job")));
    for (const JoinOutcome& outcome : outcomes) ASSERT_TRUE(outcome.membership) << outcome.message;
    leave_all(outcomes);
  };
  round();
  const auto descriptors = entries_of("/proc/self/fd");
  const auto threads = entries_of("/proc/self/task");
  for (int i = 0; i < 200; ++i) round();
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries_of("/proc/self/task"), threads);
}

}  // namespace
}  // namespace tightwire::testing::rendezvous_liveness_test
