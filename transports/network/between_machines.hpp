#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::network {

/// Whether this build has UCX.
bool has_ucx() noexcept;

/// Over UCX. Throws Error(unsupported), with `because`, where this build has none.
std::unique_ptr<Transport> between_machines(const Rendezvous& rendezvous, const std::string& because);

/// Through memory inside nodes, over UCX across; empty nodes: those that are found. `otherwise`: where ranks of a node
/// cannot share memory. Throws as above.
std::unique_ptr<Transport> by_node(const Rendezvous& rendezvous, const std::vector<int>& node_of_rank,
                                   const std::string& because,
                                   const std::function<std::unique_ptr<Transport>(const std::string&)>& otherwise);

}  // namespace tightwire::network
