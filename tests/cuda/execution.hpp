#pragma once
#include <string>
#include <vector>

namespace tightwire::testing {

/// Where kernels run: emulated on the CPU, in several orders, or on a device, in its own.
std::vector<std::string> schedules();
void use_schedule(std::size_t number);

/// Why nothing can run here; empty if it can. A machine that should have a device says so with TIGHTWIRE_REQUIRE_GPU=1.
std::string why_not_here();
bool must_run_here();

}  // namespace tightwire::testing
