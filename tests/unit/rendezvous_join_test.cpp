#include <sys/resource.h>

#include <fstream>

#include "rendezvous/join.hpp"
#include "rendezvous/socket.hpp"
#include "rendezvous_support.hpp"

namespace tightwire::testing::rendezvous_join_test {
namespace {

/// A port that is free now, on loopback.
std::uint16_t free_port() { return rendezvous::local_address(rendezvous::listen_at(rendezvous::loopback(0))).port(); }

class JoinSize : public ::testing::TestWithParam<int> {};

TEST_P(JoinSize, GivesEveryRankTheBlobOfEveryRank) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  const int size = GetParam();
  const std::string path = directory.path("job");
  for (const std::string& address :
       {"file://" + path, "local://" + path, "tcp://127.0.0.1:" + std::to_string(free_port())}) {
    auto outcomes = join_all(whole_job(size, address));
    for (int rank = 0; rank < size; ++rank) {
      const JoinOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(outcome.membership) << address << ": " << outcome.message;
      EXPECT_EQ(outcome.membership->rank(), rank);
      EXPECT_EQ(outcome.membership->size(), size);
      ASSERT_EQ(outcome.membership->blobs().size(), static_cast<std::size_t>(size));
      for (int peer = 0; peer < size; ++peer) {
        EXPECT_EQ(outcome.membership->blobs()[static_cast<std::size_t>(peer)], blob_of(peer));
      }
    }
    EXPECT_TRUE(directory.is_empty()) << "the rendezvous file stays behind";
    leave_all(outcomes);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, JoinSize, ::testing::Values(1, 2, 4, 8, 32));

TEST(Join, CarriesLargeBlobsAndEmptyOnes) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  const std::vector<std::string> blobs{std::string(1'000'000, 'a'), {}, std::string(1'000'000, '\0'), "d"};
  std::vector<std::unique_ptr<Membership>> members(4);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      members[rank] = Membership::join(job(static_cast<int>(rank), 4, "file://" + directory.path("job")), blobs[rank]);
      members[rank]->leave(milliseconds(5000));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& member : members) EXPECT_EQ(member->blobs(), blobs);
}

TEST(Join, RefusesABlobAboveTheLimitBeforeAnythingStarts) {
  const auto outcome = outcome_of(
      [] { return Membership::join(job(0, 2, "local:///nonexistent/x"), std::string((16U << 20U) + 1, 'x')); });
  EXPECT_EQ(outcome.code, Errc::invalid_argument);
  expect_mentions(outcome.message, {"16777217", "16777216"});
}

TEST(Join, RefusesWhatCannotWork) {
  Rendezvous keyless = job(0, 2, "local:///tmp/x");
  keyless.key.clear();
  for (const Rendezvous& bad :
       {job(-1, 2, "local:///tmp/x"), job(0, 0, "local:///tmp/x"), job(1, 1, "local:///tmp/x"), job(0, 2, ""),
        job(1, 2, "tcp://127.0.0.1:0"), keyless, job(0, 2, "local:///tmp/x", milliseconds(0))}) {
    EXPECT_EQ(outcome_of([&] { return Membership::join(bad, {}); }).code, Errc::invalid_argument);
  }
}

TEST(Join, MissingRankIsNamedOnEveryRankThatIsThere) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  auto ranks = whole_job(4, "file://" + directory.path("job"), milliseconds(400));
  ranks.pop_back();
  const auto outcomes = join_all(ranks);
  for (const JoinOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Errc::timeout) << outcome.message;
    expect_mentions(outcome.message, {"rank 3 missing; present: 0 1 2"});
    EXPECT_GE(outcome.took, milliseconds(350));
    EXPECT_LT(outcome.took, milliseconds(1400));
  }
  EXPECT_TRUE(directory.is_empty());
}

TEST(Join, TheShortestLimitEndsTheJoinForAll) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  auto ranks = whole_job(4, "file://" + directory.path("job"), milliseconds(9000));
  ranks.pop_back();
  ranks[2].timeout = milliseconds(300);
  for (const JoinOutcome& outcome : join_all(ranks)) {
    EXPECT_EQ(outcome.code, Errc::timeout) << outcome.message;
    expect_mentions(outcome.message, {"rank 3 missing; present: 0 1 2"});
    EXPECT_LT(outcome.took, milliseconds(2000));
  }
}

TEST(Join, MissingRankZeroIsNamed) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  for (const std::string& address :
       {"file://" + directory.path("job"), "tcp://127.0.0.1:" + std::to_string(free_port())}) {
    const auto outcome = outcome_of([&] { return Membership::join(job(1, 2, address, milliseconds(300)), {}); });
    EXPECT_EQ(outcome.code, Errc::timeout);
    expect_mentions(outcome.message, {"rank 0 missing", "rank 1", address, "300 ms"});
    EXPECT_LT(outcome.took, milliseconds(1300));
  }
}

TEST(Join, DuplicateRankIsRefusedOnBothSides) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  const std::string address = "file://" + directory.path("job");
  for (const JoinOutcome& outcome : join_all({job(0, 4, address), job(1, 4, address), job(1, 4, address)})) {
    EXPECT_EQ(outcome.code, Errc::mismatch) << outcome.message;
    expect_mentions(outcome.message, {"rank 1 joined twice", "process " + std::to_string(::getpid())});
    EXPECT_LT(outcome.took, milliseconds(3000));
  }
}

TEST(Join, SecondRankZeroIsRefusedOnBothSides) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  const std::string address = "file://" + directory.path("job");
  for (const JoinOutcome& outcome : join_all({job(0, 3, address), job(0, 3, address)})) {
    EXPECT_EQ(outcome.code, Errc::mismatch) << outcome.message;
    expect_mentions(outcome.message, {"rank 0 joined twice"});
  }
}

TEST(Join, WorldSizesAreNamedOnBothSides) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  const std::string address = "file://" + directory.path("job");
  for (const JoinOutcome& outcome : join_all({job(0, 3, address), job(1, 4, address)})) {
    EXPECT_EQ(outcome.code, Errc::mismatch) << outcome.message;
    expect_mentions(outcome.message, {"rank 1", "world size 4", "rank 0", "with 3"});
  }
}

TEST(Join, RankOutOfRangeIsNamedOnBothSides) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  const std::string address = "file://" + directory.path("job");
  for (const JoinOutcome& outcome : join_all({job(0, 3, address), job(7, 3, address)})) {
    EXPECT_EQ(outcome.code, Errc::mismatch) << outcome.message;
    expect_mentions(outcome.message, {"rank 7", "out of range", "0 to 2"});
  }
}

TEST(Join, ProtocolVersionsAreNamedOnBothSides) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  const std::string address = "file://" + directory.path("job");
  JoinOutcome zero;
  std::thread thread(
      [&] { zero = outcome_of([&] { return rendezvous::join_with_protocol(job(0, 2, address), {}, 1); }); });
  const JoinOutcome one = outcome_of([&] { return rendezvous::join_with_protocol(job(1, 2, address), {}, 9); });
  thread.join();
  for (const JoinOutcome* const outcome : std::initializer_list<const JoinOutcome*>{&zero, &one}) {
    EXPECT_EQ(outcome->code, Errc::mismatch) << outcome->message;
    expect_mentions(outcome->message, {"rank 1", "protocol 9", "rank 0", "speaks 1"});
  }
}

TEST(Join, PortInUseNamesAddressAndErrno) {
  const auto taken = rendezvous::listen_at(rendezvous::loopback(0));
  const std::string place = rendezvous::local_address(taken).text();
  const auto outcome = outcome_of([&] { return Membership::join(job(0, 2, "tcp://" + place), {}); });
  EXPECT_EQ(outcome.code, Errc::transport);
  expect_mentions(outcome.message, {place, "Address already in use", "errno 98"});
  EXPECT_LT(outcome.took, milliseconds(1000));
}

TEST(Join, FileThatCannotBeWrittenIsNamed) {
  const auto outcome = outcome_of([] { return Membership::join(job(0, 2, "file:///nonexistent/place"), {}); });
  EXPECT_EQ(outcome.code, Errc::transport);
  expect_mentions(outcome.message, {"/nonexistent/place", "No such file or directory"});
}

TEST(Join, TheSamePlaceServesAgainAtOnce) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  for (const std::string& address :
       {"file://" + directory.path("job"), "tcp://127.0.0.1:" + std::to_string(free_port())}) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        for (int round = 0; round < 5; ++round) {
          const std::string blob = std::to_string(round);
          const auto outcome = outcome_of([&] { return Membership::join(job(rank, 3, address), blob); });
          ASSERT_TRUE(outcome.membership) << "round " << round << ": " << outcome.message;
          EXPECT_EQ(outcome.membership->blobs(), (std::vector<std::string>{blob, blob, blob}));
          outcome.membership->leave(milliseconds(5000));
          EXPECT_FALSE(outcome.membership->loss());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Join, JobsSideBySideDoNotMix) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  auto ranks = whole_job(3, "file://" + directory.path("one"));
  const auto other = whole_job(3, "file://" + directory.path("two"));
  ranks.insert(ranks.end(), other.begin(), other.end());
  auto outcomes = join_all(ranks);
  for (const JoinOutcome& outcome : outcomes) ASSERT_TRUE(outcome.membership) << outcome.message;
  leave_all(outcomes);
}

/// A file as a crashed rank 0 leaves it, naming a port where nobody listens, or somebody else does.
void leave_stale_file(const std::string& path, std::uint16_t port) {
  std::ofstream(path) << "tightwire rendezvous 1\nmachine " << rendezvous::machine_name() << "\nsecret 00\nloopback "
                      << "127.0.0.1:" << port << "\nend\n";
}

TEST(Join, FileOfACrashedJobIsReplaced) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  const std::string path = directory.path("job");
  const auto silent = rendezvous::listen_at(rendezvous::loopback(0));
  for (const std::uint16_t port : {free_port(), rendezvous::local_address(silent).port()}) {
    leave_stale_file(path, port);
    auto outcomes = join_all(whole_job(3, "file://" + path));
    for (const JoinOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.membership) << outcome.message;
      EXPECT_LT(outcome.took, milliseconds(3000));
    }
    leave_all(outcomes);
    EXPECT_TRUE(directory.is_empty());
  }
}

TEST(Join, OthersWaitOutAStaleFileUntilRankZeroComes) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  const std::string path = directory.path("job");
  leave_stale_file(path, free_port());
  JoinOutcome one;
  std::thread thread([&] { one = outcome_of([&] { return Membership::join(job(1, 2, "file://" + path), {}); }); });
  std::this_thread::sleep_for(milliseconds(100));
  auto zero = outcome_of([&] { return Membership::join(job(0, 2, "file://" + path), {}); });
  thread.join();
  EXPECT_TRUE(zero.membership) << zero.message;
  EXPECT_TRUE(one.membership) << one.message;
}

TEST(Join, FilesThatAreNoRendezvousFilesAreWaitedOut) {
  const HardLimit limit(10);
  const TemporaryDirectory directory;
  const std::string path = directory.path("job");
  const auto expect_problem = [&](const std::string& problem) {
    const auto outcome =
        outcome_of([&] { return Membership::join(job(1, 2, "file://" + path, milliseconds(100)), {}); });
    EXPECT_EQ(outcome.code, Errc::timeout);
    expect_mentions(outcome.message, {path, problem});
    std::filesystem::remove(path);
  };
  std::ofstream(path) << "tightwire rendezvous 1\nmachine x\n";
  expect_problem("not complete");
  std::ofstream(path) << std::string(200'000, 'x');
  expect_problem("not complete");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_problem("no plain file");
  std::filesystem::create_symlink("/etc/passwd", path);
  expect_problem("symbolic links");
  leave_stale_file(path, 1);
  if (::geteuid() == 0 && ::chown(path.c_str(), 12345, 12345) == 0) expect_problem("belongs to user 12345");
}

TEST(Join, ManyRanksFitUnderASmallDescriptorLimit) {
  const HardLimit limit(30);
  const TemporaryDirectory directory;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const std::string address = "file://" + directory.path("job");
  constexpr int kRanks = 64;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const rlimit small{rank == 0 ? 256U : 16U, before.rlim_max};
      ::setrlimit(RLIMIT_NOFILE, &small);
      const auto outcome =
          outcome_of([&] { return Membership::join(job(rank, kRanks, address, milliseconds(20000)), blob_of(rank)); });
      if (!outcome.membership) ::_exit(1);
      const bool right = outcome.membership->blobs()[kRanks - 1] == blob_of(kRanks - 1);
      outcome.membership->leave(milliseconds(10000));
      ::_exit(right && !outcome.membership->loss() ? 0 : 2);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(Join, RunningOutOfDescriptorsIsSaidByName) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  const std::string address = "file://" + directory.path("job");
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // What is open already, and rank 0's socket and file, but no connection.
    const int next = ::dup(0);
    const rlimit small{static_cast<rlim_t>(next) + 2, static_cast<rlim_t>(next) + 2};
    ::close(next);
    ::setrlimit(RLIMIT_NOFILE, &small);
    const auto outcome = outcome_of([&] { return Membership::join(job(0, 4, address), {}); });
    static_cast<void>(!::write(pipe_ends[1], outcome.message.data(), outcome.message.size()));
    ::_exit(outcome.code == Errc::transport ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  auto others = whole_job(4, address, milliseconds(400));
  others.erase(others.begin());
  for (const JoinOutcome& outcome : join_all(others)) EXPECT_NE(outcome.code, Errc::ok);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  std::string said(4096, '\0');
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(pipe_ends[0], said.data(), said.size()))));
  ::close(pipe_ends[0]);
  EXPECT_EQ(status, 0) << said;
  expect_mentions(said, {"Too many open files", "ulimit -n"});
}

}  // namespace
}  // namespace tightwire::testing::rendezvous_join_test
