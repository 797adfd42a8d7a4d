#pragma once
#include <chrono>
#include <functional>
#include <memory>

#include <tightwire/nccl.hpp>

namespace tightwire::nccl {

struct Api;

// As in tightwire/nccl.hpp, with NCCL or what takes its place. One that cannot be loaded is an error on every rank.
std::shared_ptr<cuda::Transport> open(const Rendezvous& rendezvous, const std::function<const Api&()>& api);
std::shared_ptr<cuda::Transport> open(Transport& host, std::chrono::milliseconds timeout,
                                      const std::function<const Api&()>& api);
std::shared_ptr<cuda::Transport> adopt(ncclComm* communicator, std::chrono::milliseconds timeout, const Api& api);

}  // namespace tightwire::nccl
