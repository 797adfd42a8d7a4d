#pragma once
#include <chrono>
#include <memory>
#include <string>

#include <tightwire/cuda_transport.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::testing {

// How ranks that are threads come to a transport between devices: by the double of NCCL and emulated devices, or by
// NCCL and devices of this machine, one for each rank.

int most_ranks();
void prepare_devices(int ranks);
std::shared_ptr<cuda::Transport> join_devices(Transport& host, std::chrono::milliseconds timeout);
/// What went wrong last, as far as that is known.
std::string last_words();
/// No communicator is left behind; NCCL itself does not tell.
void expect_nothing_left();

}  // namespace tightwire::testing
