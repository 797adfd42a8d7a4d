#pragma once
#include <memory>
#include <string>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::c {

/// Joins the job over the network that this build has. One rank alone needs none.
/// Throws Error(unsupported) for more where there is none.
std::shared_ptr<Transport> connect(const Rendezvous& rendezvous);

/// What `connect` goes over, for people.
std::string connections();

}  // namespace tightwire::c
