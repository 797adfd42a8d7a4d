#include <tightwire/ucx.hpp>

#include "transports.hpp"

namespace tightwire::tool {

std::optional<UcxState> ucx_state() {
  return UcxState{ucx::version(), ucx::available_transports(), ucx::knows_cuda_memory()};
}
std::shared_ptr<Transport> open_transport(const Rendezvous& rendezvous) { return ucx::open(rendezvous); }

}  // namespace tightwire::tool
