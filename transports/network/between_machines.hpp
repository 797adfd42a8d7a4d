#pragma once
#include <memory>
#include <string>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::network {

/// Over UCX. Throws Error(unsupported), with `because`, where this build has none.
std::unique_ptr<Transport> between_machines(const Rendezvous& rendezvous, const std::string& because);

}  // namespace tightwire::network
