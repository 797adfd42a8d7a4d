#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tightwire::testing {

/// Where kernels run: emulated on the CPU, in several orders, or on a device, in its own.
std::vector<std::string> schedules();
void use_schedule(std::size_t number);

/// Why nothing can run here; empty if it can. A machine that should have a device says so with TIGHTWIRE_REQUIRE_GPU=1.
std::string why_not_here();
bool must_run_here();

/// Tests that need kernels to run.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = why_not_here();
    if (why.empty()) return;
    if (must_run_here()) FAIL() << why;
    GTEST_SKIP() << why;
  }
};

}  // namespace tightwire::testing
