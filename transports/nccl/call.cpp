#include "call.hpp"

#include <thread>

namespace tightwire::nccl {
namespace {

Errc code_of(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError: return Errc::device;
    case ncclRemoteError: return Errc::peer_lost;
    case ncclInternalError: return Errc::internal;
    default: return Errc::transport;
  }
}

}  // namespace

std::string text_of_version(int version) {
  const int major = version / 10000, minor = version / 100 % 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

Error error_of(const Api& api, ncclResult_t result, std::string_view call, int rank, ncclComm_t comm) {
  std::string text = "rank " + std::to_string(rank) + ": " + std::string(call) + ": " + api.get_error_string(result) +
                     " (" + std::to_string(static_cast<int>(result)) + ")";
  if (const char* const more = api.get_last_error(comm); more != nullptr && *more != '\0')
    text += ": " + std::string(more);
  return {code_of(result), text};
}

void settle(const Api& api, ncclResult_t result, const Call& call, const std::function<void()>& look) {
  // A launch, which is most of them, is over before a thread that sleeps is awake again.
  const TimePoint soon = Clock::now() + std::chrono::microseconds(200);
  while (result == ncclInProgress) {
    ncclResult_t state = ncclInProgress;
    if (const ncclResult_t asked = api.comm_get_async_error(call.comm, &state); asked != ncclSuccess)
      throw error_of(api, asked, "ncclCommGetAsyncError", call.rank, call.comm);
    result = state;
    if (result != ncclInProgress) break;
    if (look) look();
    if (Clock::now() >= call.until)
      throw Error(Errc::timeout, "rank " + std::to_string(call.rank) + ": " + std::string(call.name) +
                                     " was not over within the time limit; not all ranks have come");
    if (Clock::now() < soon)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (result != ncclSuccess) throw error_of(api, result, call.name, call.rank, call.comm);
}

}  // namespace tightwire::nccl
