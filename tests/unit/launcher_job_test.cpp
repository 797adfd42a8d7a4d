#include "launcher/launcher.hpp"

#include <fcntl.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "unit/rendezvous_support.hpp"

namespace tightwire::testing::launcher_job_test {
namespace {

/// What came of a launch.
struct Launched {
  int status = -1;
  std::string output;
  std::vector<std::string> reports;
  milliseconds took{0};

  bool reported(const std::string& words) const {
    return std::any_of(reports.begin(), reports.end(),
                       [&](const std::string& line) { return line.find(words) != std::string::npos; });
  }
  std::multiset<std::string> lines() const {
    std::multiset<std::string> all;
    std::istringstream stream(output);
    for (std::string line; std::getline(stream, line);) all.insert(line);
    return all;
  }
};

Launched run(LaunchOptions options) {
  Launched launched;
  options.report = [&](const std::string& line) { launched.reports.push_back(line); };
  ::testing::internal::CaptureStdout();
  const auto begin = SteadyClock::now();
  launched.status = launch(options);
  launched.took = since(begin);
  launched.output = ::testing::internal::GetCapturedStdout();
  return launched;
}

LaunchOptions shell(int ranks, const std::string& script) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  options.grace = milliseconds(5000);
  return options;
}

TEST(Launcher, SuccessIsZeroAndSilent) {
  const HardLimit limit(20);
  const Launched launched = run(shell(3, "exit 0"));
  EXPECT_EQ(launched.status, 0);
  EXPECT_TRUE(launched.reports.empty());
  EXPECT_TRUE(launched.output.empty());
}

TEST(Launcher, ReturnsTheStatusOfTheRankThatFailedFirst) {
  const HardLimit limit(20);
  const Launched launched = run(shell(3, "[ $RANK = 1 ] && exit 7; sleep 0.2; exit 3"));
  EXPECT_EQ(launched.status, 7);
  ASSERT_EQ(launched.reports.size(), 3U);
  EXPECT_EQ(launched.reports[0].substr(0, 16), "rank 1 (process ");
  EXPECT_TRUE(launched.reported("rank 1 (process ") && launched.reported(") exited with status 7"));
  EXPECT_TRUE(launched.reported(") exited with status 3"));
}

TEST(Launcher, SignalOfARankIsReportedByName) {
  const HardLimit limit(20);
  const Launched launched = run(shell(2, "[ $RANK = 1 ] && kill -9 $$; exit 0"));
  EXPECT_EQ(launched.status, 128 + SIGKILL);
  EXPECT_TRUE(launched.reported(") was killed by signal 9 (Killed)"));
}

TEST(Launcher, AKilledRankCountsAsTheCauseThoughOthersEndedSooner) {
  const HardLimit limit(20);
  EXPECT_EQ(run(shell(3, "[ $RANK != 1 ] && exit 9; sleep 0.1; kill -9 $$")).status, 128 + SIGKILL);
}

TEST(Launcher, CommandThatIsNotThereIsNamed) {
  const HardLimit limit(20);
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"/nonexistent/program"};
  Launched launched = run(options);
  EXPECT_EQ(launched.status, 127);
  EXPECT_TRUE(launched.reported("rank 0 could not be started: /nonexistent/program: No such file or directory"));
  options.command = {"/etc/passwd"};
  launched = run(options);
  EXPECT_EQ(launched.status, 126);
  EXPECT_TRUE(launched.reported("Permission denied"));
}

TEST(Launcher, OptionsThatCannotWorkAreRefused) {
  EXPECT_THROW(launch(LaunchOptions{}), Error);
  LaunchOptions options = shell(0, "exit 0");
  EXPECT_THROW(launch(options), Error);
}

TEST(Launcher, GivesEachRankItsEnvironment) {
  const HardLimit limit(20);
  ::setenv("TIGHTWIRE_RANK", "77", 1);
  ::setenv("TIGHTWIRE_TEST_KEPT", "kept", 1);
  const Launched launched =
      run(shell(2,
                "dir=${TIGHTWIRE_RENDEZVOUS#local://}; dir=${dir%/*}; "
                "echo $TIGHTWIRE_RANK/$TIGHTWIRE_WORLD_SIZE/$TIGHTWIRE_LOCAL_RANK $RANK/$WORLD_SIZE/$LOCAL_RANK "
                "$TIGHTWIRE_TEST_KEPT ${#TIGHTWIRE_JOB_KEY} $(stat -c %a $dir) $(env | grep -c ^TIGHTWIRE_RANK=); "
                "echo key $TIGHTWIRE_JOB_KEY; echo directory $dir"));
  ::unsetenv("TIGHTWIRE_RANK");
  ::unsetenv("TIGHTWIRE_TEST_KEPT");
  EXPECT_EQ(launched.status, 0);
  const auto lines = launched.lines();
  ASSERT_EQ(lines.size(), 6U) << launched.output;
  EXPECT_EQ(lines.count("0/2/0 0/2/0 kept 64 700 1"), 1U) << launched.output;
  EXPECT_EQ(lines.count("1/2/1 1/2/1 kept 64 700 1"), 1U) << launched.output;
  // The same key and place for both ranks, another key for another job, and nothing left of the place.
  const std::set<std::string> distinct(lines.begin(), lines.end());
  ASSERT_EQ(distinct.size(), 4U) << launched.output;
  const std::string directory = distinct.lower_bound("directory ")->substr(10);
  EXPECT_FALSE(std::filesystem::exists(directory)) << directory;
  const Launched other = run(shell(1, "echo key $TIGHTWIRE_JOB_KEY"));
  EXPECT_EQ(distinct.count(*other.lines().begin()), 0U);
}

TEST(Launcher, DirectoryGoesThoughARankWasKilled) {
  const HardLimit limit(20);
  const Launched launched =
      run(shell(2, "f=${TIGHTWIRE_RENDEZVOUS#local://}; echo stale >$f.$RANK; echo $f; kill -9 $$"));
  EXPECT_EQ(launched.status, 128 + SIGKILL);
  const std::string file = *launched.lines().begin();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(file).parent_path())) << file;
}

TEST(Launcher, PrefixesEveryLineAndKeepsLinesWhole) {
  const HardLimit limit(20);
  LaunchOptions options = shell(4,
                                "i=0; while [ $i -lt 200 ]; do printf 'line '; echo $i of $RANK; i=$((i+1)); done; "
                                "printf 'no newline'");
  options.prefix_output = true;
  const Launched launched = run(options);
  EXPECT_EQ(launched.status, 0);
  const auto lines = launched.lines();
  EXPECT_EQ(lines.size(), 4U * 201U);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(lines.count("[" + number + "] no newline"), 1U);
    for (int i = 0; i < 200; ++i) {
      std::string line = "[" + number + "] line ";
      line.append(std::to_string(i)).append(" of ").append(number);
      EXPECT_EQ(lines.count(line), 1U);
    }
  }
}

TEST(Launcher, CarriesMuchOutputAndLinesWithoutEnd) {
  const HardLimit limit(20);
  LaunchOptions options = shell(2, "head -c 3000000 /dev/zero | tr '\\0' x");
  options.prefix_output = true;
  const Launched launched = run(options);
  EXPECT_EQ(launched.status, 0);
  EXPECT_EQ(std::count(launched.output.begin(), launched.output.end(), 'x'), 6'000'000);
}

TEST(Launcher, WrapperIsPutBeforeTheCommand) {
  const HardLimit limit(20);
  LaunchOptions options = shell(2, "echo $WRAPPED ${TIGHTWIRE_RENDEZVOUS%%/*}");
  options.wrapper = {"env", "WRAPPED=for-{rank}-and-{rank}"};
  const Launched launched = run(options);
  EXPECT_EQ(launched.lines(), (std::multiset<std::string>{"for-0-and-0 file:", "for-1-and-1 file:"}));
}

TEST(Launcher, OnlyRankZeroReadsInput) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  std::ofstream(directory.path("input")) << "something to read\n";
  const int saved = ::dup(STDIN_FILENO);
  const int input = ::open(directory.path("input").c_str(), O_RDONLY);
  ::dup2(input, STDIN_FILENO);
  const Launched launched = run(shell(3, "echo $RANK: $(cat)"));
  ::dup2(saved, STDIN_FILENO);
  ::close(saved);
  ::close(input);
  EXPECT_EQ(launched.lines(), (std::multiset<std::string>{"0: something to read", "1:", "2:"}));
}

TEST(Launcher, OthersGetTheirGraceThenTermThenKill) {
  const HardLimit limit(20);
  // Rank 0 fails; rank 1 ends by itself in the grace period, rank 2 at SIGTERM, rank 3 only at SIGKILL.
  LaunchOptions options = shell(4,
                                "case $RANK in 0) exit 5;; 1) sleep 0.1; echo by itself; exit 0;; "
                                "2) trap 'echo asked; exit 0' TERM;; 3) trap '' TERM;; esac; "
                                "while :; do sleep 0.05; done");
  options.grace = milliseconds(400);
  options.kill_after = milliseconds(300);
  const Launched launched = run(options);
  EXPECT_EQ(launched.status, 5);
  EXPECT_EQ(launched.lines(), (std::multiset<std::string>{"asked", "by itself"}));
  EXPECT_TRUE(launched.reported("asking ranks 2 3 to end"));
  EXPECT_TRUE(launched.reported("killing ranks 3"));
  EXPECT_TRUE(launched.reported("rank 3 (process ") && launched.reported(") was killed by signal 9"));
  EXPECT_GE(launched.took, milliseconds(700));
  EXPECT_LT(launched.took, milliseconds(3000));
}

/// Whether the process is gone, or only waits to be collected by its new parent, before the limit is over.
bool ends_within(const std::string& process, milliseconds limit) {
  const auto until = SteadyClock::now() + limit;
  while (SteadyClock::now() < until) {
    std::ifstream stat("/proc/" + process + "/stat");
    std::string number;
    std::string name;
    std::string state;
    if (!(stat >> number >> name >> state) || state == "Z" || state == "X") return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

TEST(Launcher, NothingOfARankSurvivesIt) {
  const HardLimit limit(20);
  const Launched launched = run(shell(2, "sleep 300 >/dev/null & echo $!; exit 0"));
  EXPECT_EQ(launched.status, 0);
  EXPECT_LT(launched.took, milliseconds(5000));
  for (const std::string& process : launched.lines()) {
    EXPECT_TRUE(ends_within(process, milliseconds(2000))) << process << " still runs";
  }
}

/// A launcher in a process of its own, that writes into files.
class LauncherProcess {
 public:
  explicit LauncherProcess(const LaunchOptions& options, const TemporaryDirectory& directory)
      : path_(directory.path("output")) {
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("fork failed");
    if (process_ != 0) return;
    ::setenv("TMPDIR", directory.path("").c_str(), 1);
    const int output = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(output, STDOUT_FILENO);
    ::_exit(launch(options));
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;
  ~LauncherProcess() {
    kill(SIGKILL);
    wait();
  }

  void kill(int signal) const {
    if (!reaped_) ::kill(process_, signal);
  }
  int wait() {
    if (!reaped_) ::waitpid(process_, &status_, 0);
    reaped_ = true;
    return status_;
  }
  /// Waits for that many lines of output.
  std::vector<std::string> lines(std::size_t count) const {
    std::vector<std::string> lines;
    const auto until = SteadyClock::now() + milliseconds(5000);
    while (lines.size() < count && SteadyClock::now() < until) {
      std::this_thread::sleep_for(milliseconds(5));
      lines.clear();
      std::ifstream file(path_);
      for (std::string line; std::getline(file, line) && !file.eof();) lines.push_back(line);
    }
    return lines;
  }

 private:
  std::string path_;
  pid_t process_ = -1;
  int status_ = -1;
  bool reaped_ = false;
};

TEST(Launcher, PassesSignalsOn) {
  const HardLimit limit(20);
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryDirectory directory;
    LauncherProcess launcher(
        shell(2, "trap 'exit 40' INT; trap 'exit 41' TERM; echo ready; while :; do sleep 0.02; done"), directory);
    ASSERT_EQ(launcher.lines(2).size(), 2U);
    launcher.kill(signal);
    const int status = launcher.wait();
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), signal == SIGINT ? 40 : 41);
  }
}

TEST(Launcher, RanksStartWithNoSignalBlocked) {
  const HardLimit limit(20);
  LaunchOptions options;
  options.command = {"grep", "SigBlk", "/proc/self/status"};
  EXPECT_EQ(run(options).output, "SigBlk:\t0000000000000000\n");
}

TEST(Launcher, TheSecondSignalKills) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  LauncherProcess launcher(shell(2, "trap '' INT; echo ready; while :; do sleep 0.02; done"), directory);
  ASSERT_EQ(launcher.lines(2).size(), 2U);
  launcher.kill(SIGINT);
  std::this_thread::sleep_for(milliseconds(100));
  launcher.kill(SIGINT);
  EXPECT_EQ(WEXITSTATUS(launcher.wait()), 128 + SIGKILL);
}

TEST(Launcher, RanksDieWithIt) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  LauncherProcess launcher(shell(2, "echo $$; exec sleep 300"), directory);
  const auto processes = launcher.lines(2);
  ASSERT_EQ(processes.size(), 2U);
  launcher.kill(SIGKILL);
  launcher.wait();
  for (const std::string& process : processes) {
    EXPECT_TRUE(ends_within(process, milliseconds(2000))) << process << " still runs";
  }
}

TEST(Launcher, EndsWhenNobodyReadsItsOutput) {
  const HardLimit limit(20);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t process = ::fork();
  if (process == 0) {
    ::close(ends[0]);
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[1]);
    LaunchOptions options = shell(2, "while :; do echo more; done");
    options.prefix_output = true;
    ::_exit(launch(options));
  }
  ::close(ends[1]);
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGPIPE);
}

/// What the ranks of the next tests run: this program again, with one of its own disabled tests as the rank.
LaunchOptions this_program(int ranks, const std::string& test) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_also_run_disabled_tests",
                     "--gtest_brief=1", "--gtest_filter=" + test};
  return options;
}

TEST(LaunchedRank, DISABLED_JoinsAndLeaves) {
  const auto membership = Membership::join(rendezvous::environment(), "blob");
  EXPECT_EQ(membership->size(), 4);
  EXPECT_EQ(membership->blobs(), std::vector<std::string>(4, "blob"));
  membership->leave(milliseconds(5000));
  EXPECT_FALSE(membership->loss());
}

TEST(LaunchedRank, DISABLED_WaitsForALossAndSaysSo) {
  const auto membership = Membership::join(rendezvous::environment(), {});
  if (membership->rank() == 2) ::kill(::getpid(), SIGKILL);
  const auto loss = wait_for_loss(*membership, milliseconds(8000));
  ASSERT_TRUE(loss);
  const std::string line =
      std::to_string(membership->rank()) + " lost " + std::to_string(loss->rank) + ": " + loss->reason + "\n";
  ASSERT_EQ(::write(STDOUT_FILENO, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  ::_exit(9);
}

TEST(Launcher, RanksFindEachOther) {
  const HardLimit limit(20);
  const Launched launched = run(this_program(4, "LaunchedRank.DISABLED_JoinsAndLeaves"));
  EXPECT_EQ(launched.status, 0) << launched.output;
}

TEST(Launcher, TheDeathOfOneRankEndsTheJobWithoutWaitingForTheGrace) {
  const HardLimit limit(20);
  const Launched launched = run(this_program(4, "LaunchedRank.DISABLED_WaitsForALossAndSaysSo"));
  EXPECT_EQ(launched.status, 128 + SIGKILL);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(launched.lines().count(std::to_string(rank) + " lost 2: its process ended"), 1U) << launched.output;
  }
  EXPECT_TRUE(launched.reported("rank 2 (process "));
  EXPECT_FALSE(launched.reported("asking ranks"));
  EXPECT_LT(launched.took, milliseconds(5000));
}

}  // namespace
}  // namespace tightwire::testing::launcher_job_test
