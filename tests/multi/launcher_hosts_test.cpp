// Ranks in network namespaces of their own, which stand for hosts: nothing but the wire connects them.
#include <fstream>

#include "launcher/launcher.hpp"
#include "unit/rank_process.hpp"

namespace tightwire::testing::launcher_hosts_test {
namespace {

/// Runs a script that knows NAME and HOST; throws when one of its commands fails.
void shell(const std::string& script, const std::string& name, int host = 0) {
  ::setenv("NAME", name.c_str(), 1);
  ::setenv("HOST", std::to_string(host).c_str(), 1);
  ::setenv("ADDRESS", ("10.77.0." + std::to_string(host + 1)).c_str(), 1);
  if (std::system(("set -e\n" + script).c_str()) != 0) throw std::runtime_error("failed: " + script);
}

/// Namespaces "<name>-0", "<name>-1", ... joined by a bridge in "<name>-sw"; rank n has 10.77.0.(n + 1).
class Hosts {
 public:
  explicit Hosts(int count) : name_("twl" + std::to_string(::getpid())), count_(count) {
    shell(
        "ip netns add $NAME-sw\n"
        "ip -n $NAME-sw link add br0 type bridge\n"
        "ip -n $NAME-sw link set br0 up",
        name_);
    for (int host = 0; host < count; ++host) {
      shell(
          "ip netns add $NAME-$HOST\n"
          "ip -n $NAME-$HOST link set lo up\n"
          "ip -n $NAME-sw link add p$HOST type veth peer name eth1 netns $NAME-$HOST\n"
          "ip -n $NAME-sw link set p$HOST master br0\n"
          "ip -n $NAME-sw link set p$HOST up\n"
          "ip -n $NAME-$HOST addr add $ADDRESS/24 dev eth1\n"
          "ip -n $NAME-$HOST link set eth1 up",
          name_, host);
    }
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  ~Hosts() {
    for (int host = 0; host < count_; ++host) shell("ip netns del $NAME-$HOST || true", name_, host);
    shell("ip netns del $NAME-sw || true", name_);
  }

  std::vector<std::string> wrapper() const { return {"ip", "netns", "exec", name_ + "-{rank}"}; }
  /// From now on nothing gets to the host or from it, and nobody is told.
  void cut_off(int host) const { shell("ip -n $NAME-sw link set p$HOST nomaster", name_, host); }

 private:
  std::string name_;
  int count_;
};

/// This program again, with one of its own disabled tests as the rank.
LaunchOptions this_program(int ranks, const std::string& test, const Hosts& hosts) {
  LaunchOptions options;
  options.ranks = ranks;
  options.wrapper = hosts.wrapper();
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_also_run_disabled_tests",
                     "--gtest_brief=1", "--gtest_filter=" + test};
  return options;
}

std::string output_file() {
  const char* const path = std::getenv("TIGHTWIRE_TEST_OUTPUT");
  return path != nullptr ? path : "/dev/null";
}

TEST(RankOnAHost, DISABLED_JoinsAndLeaves) {
  const auto job = rendezvous::environment();
  const auto membership = Membership::join(job, blob_of(job.rank));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(membership->blobs()[static_cast<std::size_t>(rank)], blob_of(rank));
  }
  membership->leave(milliseconds(5000));
  EXPECT_FALSE(membership->loss());
}

TEST(RankOnAHost, DISABLED_SleepsUntilALoss) {
  const auto membership = Membership::join(rendezvous::environment(), {});
  const std::string name = output_file() + "." + std::to_string(membership->rank());
  std::ofstream(name) << "joined" << std::endl;
  const std::string loss = sleep_until_loss(*membership, milliseconds(20'000));
  std::ofstream(name) << loss << std::endl;
  ::_exit(0);
}

TEST(LauncherOnHosts, RanksFindEachOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "making network namespaces needs root";
  const HardLimit limit(30);
  const Hosts hosts(3);
  std::string reports;
  LaunchOptions options = this_program(3, "RankOnAHost.DISABLED_JoinsAndLeaves", hosts);
  options.report = [&](const std::string& line) { reports += line + "\n"; };
  const auto begin = SteadyClock::now();
  EXPECT_EQ(launch(options), 0) << reports;
  EXPECT_LT(since(begin), milliseconds(5000));
}

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return file.eof() ? "" : line;
}

TEST(LauncherOnHosts, AHostThatVanishesIsNoticedWithinAboutTheTimeout) {
  if (::geteuid() != 0) GTEST_SKIP() << "making network namespaces needs root";
  const HardLimit limit(60);
  const TemporaryDirectory directory;
  const Hosts hosts(3);
  ::setenv("TIGHTWIRE_TEST_OUTPUT", directory.path("rank").c_str(), 1);
  ::setenv("TIGHTWIRE_TIMEOUT", "4", 1);
  const pid_t launcher = ::fork();
  if (launcher == 0) ::_exit(launch(this_program(3, "RankOnAHost.DISABLED_SleepsUntilALoss", hosts)));
  for (int rank = 0; rank < 3; ++rank) {
    while (line_of(directory.path("rank." + std::to_string(rank))) != "joined") {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  hosts.cut_off(2);
  const auto cut = now_ms();
  int status = -1;
  EXPECT_EQ(::waitpid(launcher, &status, 0), launcher);
  EXPECT_EQ(status, 0);
  ::unsetenv("TIGHTWIRE_TEST_OUTPUT");
  ::unsetenv("TIGHTWIRE_TIMEOUT");
  for (int rank = 0; rank < 3; ++rank) {
    const NoticedLoss loss = parse_loss(line_of(directory.path("rank." + std::to_string(rank))));
    EXPECT_EQ(loss.text.substr(0, 29), std::string(rank == 2 ? "0" : "2") + " its host stopped answering:");
    EXPECT_LT(loss.at_ms - cut, 7000) << "on rank " << rank;
  }
}

}  // namespace
}  // namespace tightwire::testing::launcher_hosts_test
