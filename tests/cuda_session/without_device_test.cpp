// NCCL itself, as far as it goes without a device: it is loaded, and what is missing is told in words.
#include <gtest/gtest.h>

#include <string>

#include <tightwire/local_transport.hpp>
#include <tightwire/nccl.hpp>

#include "cuda/execution.hpp"
#include "unit/support/ranks.hpp"

namespace tightwire::testing::cuda_without_device_test {
namespace {

TEST(NcclItself, IsLoadedOrSaysWhyNot) {
  try {
    EXPECT_EQ(nccl::version().rfind("2.", 0), 0u);
  } catch (const Error& error) {
    if (must_run_here()) FAIL() << error.what();
    EXPECT_EQ(error.code(), Errc::unsupported);
    EXPECT_NE(std::string(error.what()).find("NCCL"), std::string::npos) << error.what();
  }
}

TEST(NcclItself, ARankWithoutADeviceSaysSo) {
  if (cuda::devices().count > 0) GTEST_SKIP() << "there is a device";
  if (must_run_here()) FAIL() << why_not_here();
  try {
    nccl::open(*local::make(1)[0]);
    FAIL() << "opened without a device";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::unsupported);
    EXPECT_NE(std::string(error.what()).find("rank 0 cannot use NCCL: "), std::string::npos) << error.what();
  }
}

TEST(StagedItself, ARankWithoutADeviceSaysSo) {
  if (cuda::devices().count > 0) GTEST_SKIP() << "there is a device";
  if (must_run_here()) FAIL() << why_not_here();
  EXPECT_ERROR(cuda::staged(local::make(1)[0]), Errc::unsupported, "rank 0: cudaGetDevice");
}

}  // namespace
}  // namespace tightwire::testing::cuda_without_device_test
