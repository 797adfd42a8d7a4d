#include "between_machines.hpp"

namespace tightwire::network {

bool has_ucx() noexcept { return false; }

std::unique_ptr<Transport> between_machines(const Rendezvous& rendezvous, const std::string& because) {
  throw Error(Errc::unsupported, "rank " + std::to_string(rendezvous.rank) +
                                     ": this tightwire was built without ucx, which is needed: " + because);
}

std::unique_ptr<Transport> by_node(const Rendezvous& rendezvous, const std::vector<int>& /*node_of_rank*/,
                                   const std::string& because,
                                   const std::function<std::unique_ptr<Transport>(const std::string&)>& /*otherwise*/) {
  return between_machines(rendezvous, because);
}

}  // namespace tightwire::network
