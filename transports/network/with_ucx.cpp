#include <tightwire/mixed.hpp>
#include <tightwire/ucx.hpp>

#include "between_machines.hpp"

namespace tightwire::network {

bool has_ucx() noexcept { return true; }

std::unique_ptr<Transport> between_machines(const Rendezvous& rendezvous, const std::string& /*because*/) {
  return ucx::open(rendezvous);
}

std::unique_ptr<Transport> by_node(const Rendezvous& rendezvous, const std::vector<int>& node_of_rank,
                                   const std::string& /*because*/,
                                   const std::function<std::unique_ptr<Transport>(const std::string&)>& otherwise) {
  return mixed::open(rendezvous, node_of_rank, {}, otherwise);
}

}  // namespace tightwire::network
