#include <chrono>

#include <tightwire/nccl.hpp>
#include <tightwire/rendezvous.hpp>

#include "handles.hpp"

namespace tightwire::c {
namespace {

tightwire_device_communicator* device_communicator_of(std::shared_ptr<cuda::Transport> transport) {
  auto communicator = std::make_unique<tightwire_device_communicator>();
  communicator->description = transport->describe();
  communicator->transport = std::move(transport);
  return communicator.release();
}

std::chrono::milliseconds limit(int64_t timeout_ms, const char* call) {
  require(timeout_ms >= 0, call, "timeout_ms is negative");
  return timeout_ms == 0 ? std::chrono::minutes(1) : std::chrono::milliseconds(timeout_ms);
}

}  // namespace
}  // namespace tightwire::c

using tightwire::c::guarded;
using tightwire::c::require;
using tightwire::c::usable;

tightwire_status tightwire_device_communicator_adopt_nccl(void* nccl_communicator, int64_t timeout_ms,
                                                          tightwire_device_communicator** communicator) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_communicator_adopt_nccl";
    require(communicator != nullptr, kCall, "the output argument is null");
    *communicator = tightwire::c::device_communicator_of(
        tightwire::nccl::adopt(static_cast<ncclComm*>(nccl_communicator), tightwire::c::limit(timeout_ms, kCall)));
  });
}

tightwire_status tightwire_device_communicator_from_environment(tightwire_device_communicator** communicator) {
  return guarded([&] {
    require(communicator != nullptr, "tightwire_device_communicator_from_environment", "the output argument is null");
    *communicator = tightwire::c::device_communicator_of(tightwire::nccl::open(tightwire::rendezvous::environment()));
  });
}

tightwire_status tightwire_device_communicator_staged(tightwire_communicator* host, int64_t timeout_ms,
                                                      tightwire_device_communicator** communicator) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_communicator_staged";
    tightwire::c::require_same_version(kCall);
    require(communicator != nullptr, kCall, "the output argument is null");
    *communicator = tightwire::c::device_communicator_of(
        tightwire::cuda::staged(usable(host, kCall).transport, tightwire::c::limit(timeout_ms, kCall)));
  });
}

int32_t tightwire_device_communicator_rank(const tightwire_device_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->transport->rank();
}

int32_t tightwire_device_communicator_size(const tightwire_device_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->transport->size();
}

const char* tightwire_device_communicator_description(const tightwire_device_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->description.c_str();
}

tightwire_status tightwire_device_communicator_abort(tightwire_device_communicator* communicator, const char* reason) {
  return guarded([&] {
    usable(communicator, "tightwire_device_communicator_abort")
        .transport->abort(reason == nullptr ? "it gave up" : std::string_view(reason));
  });
}

void tightwire_device_communicator_close(tightwire_device_communicator* communicator) {
  if (communicator == nullptr || communicator->owner != getpid()) return;
  delete communicator;
}
