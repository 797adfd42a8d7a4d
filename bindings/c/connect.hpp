#pragma once
#include <memory>
#include <string>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::c {

/// Joins the job by what fits: see open_transport.hpp.
std::shared_ptr<Transport> connect(const Rendezvous& rendezvous);

/// What `connect` goes over, for people.
std::string connections();

}  // namespace tightwire::c
