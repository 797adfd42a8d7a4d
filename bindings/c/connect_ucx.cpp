#include <tightwire/ucx.hpp>

#include "connect.hpp"

namespace tightwire::c {

std::shared_ptr<Transport> connect(const Rendezvous& rendezvous) { return ucx::open(rendezvous); }

std::string connections() { return "UCX " + ucx::version() + ": " + ucx::available_transports(); }

}  // namespace tightwire::c
