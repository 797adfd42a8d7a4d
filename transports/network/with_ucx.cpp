#include <tightwire/ucx.hpp>

#include "between_machines.hpp"

namespace tightwire::network {

std::unique_ptr<Transport> between_machines(const Rendezvous& rendezvous, const std::string& /*because*/) {
  return ucx::open(rendezvous);
}

}  // namespace tightwire::network
