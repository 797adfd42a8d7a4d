#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include <tightwire/error.hpp>
#include <tightwire/transport.hpp>

#include "api.hpp"

namespace tightwire::nccl {

std::string text_of_version(int version);

/// The error of a call of NCCL's, which names the rank and the call.
Error error_of(const Api& api, ncclResult_t result, std::string_view call, int rank, ncclComm_t comm);

/// A call on a communicator that does not block, which may go on behind it.
struct Call {
  std::string_view name;
  int rank;
  ncclComm_t comm;
  TimePoint until;
};
/// Waits until it is over. Throws what came of it, Error(timeout) at its `until`, and what `look` throws, which is
/// called in between.
void settle(const Api& api, ncclResult_t result, const Call& call, const std::function<void()>& look = {});

}  // namespace tightwire::nccl
