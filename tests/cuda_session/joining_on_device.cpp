#include <string>

#include <tightwire/nccl.hpp>

#include "joining.hpp"

namespace tightwire::testing {

int most_ranks() { return cuda::devices().count; }
void prepare_devices(int) {}
std::shared_ptr<cuda::Transport> join_devices(Transport& host, std::chrono::milliseconds timeout) {
  return nccl::open(host, timeout);
}
std::string last_words() { return ""; }
void expect_nothing_left() {}

}  // namespace tightwire::testing
