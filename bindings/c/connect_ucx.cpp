#include <tightwire/open_transport.hpp>
#include <tightwire/ucx.hpp>

#include "connect.hpp"

namespace tightwire::c {

std::shared_ptr<Transport> connect(const Rendezvous& rendezvous) { return open_transport(rendezvous); }

std::string connections() {
  return "shared memory on one machine; UCX " + ucx::version() + ": " + ucx::available_transports();
}

}  // namespace tightwire::c
