#include <gtest/gtest.h>

#include <string>

#include "cuda_emulation/nccl_double.hpp"
#include "cuda_emulation/runtime/options.hpp"
#include "joining.hpp"
#include "open.hpp"

namespace tightwire::testing {

int most_ranks() { return 8; }
void prepare_devices(int ranks) {
  cuda_emulation::reset();
  cuda_emulation::reset_nccl();
  cuda_emulation::options().devices = ranks;
}
std::shared_ptr<cuda::Transport> join_devices(Transport& host, std::chrono::milliseconds timeout) {
  return nccl::open(host, timeout, cuda_emulation::nccl_double);
}
std::string last_words() { return cuda_emulation::last_report(); }
void expect_nothing_left() { EXPECT_EQ(cuda_emulation::living_communicators(), 0); }

}  // namespace tightwire::testing
