// Ranks started by Open MPI's launcher, with nothing set by the user.
#include <fstream>

#include "unit/rendezvous_support.hpp"

namespace tightwire::testing::launcher_mpirun_test {
namespace {

bool has_mpirun() { return std::system("command -v mpirun >/dev/null 2>&1") == 0; }

std::string mpirun_this(const std::string& test, const std::string& output) {
  return "exec env -u TIGHTWIRE_RANK -u RANK mpirun --allow-run-as-root --oversubscribe -np 3 " +
         std::filesystem::read_symlink("/proc/self/exe").string() +
         " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=" + test + " >" + output + " 2>&1";
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RankOfOpenMpi, DISABLED_JoinsAndLeaves) {
  const auto job = rendezvous::environment();
  ASSERT_EQ(job.size, 3);
  const auto membership = Membership::join(job, blob_of(job.rank));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(membership->blobs()[static_cast<std::size_t>(rank)], blob_of(rank));
  }
  membership->leave(milliseconds(10'000));
  EXPECT_FALSE(membership->loss());
}

TEST(OpenMpi, TwoJobsAtOnceWithDefaultsBothWork) {
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed";
  const HardLimit limit(60);
  const TemporaryDirectory directory;
  std::vector<std::thread> jobs;
  std::array<int, 2> statuses{-1, -1};
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    jobs.emplace_back([&, i] {
      const std::string output = directory.path(std::to_string(i));
      statuses[i] = std::system(mpirun_this("RankOfOpenMpi.DISABLED_JoinsAndLeaves", output).c_str());
    });
  }
  for (std::thread& job : jobs) job.join();
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    EXPECT_EQ(statuses[i], 0) << text_of(directory.path(std::to_string(i)));
  }
}

}  // namespace
}  // namespace tightwire::testing::launcher_mpirun_test
