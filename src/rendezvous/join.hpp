#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include <tightwire/rendezvous.hpp>

namespace tightwire::rendezvous {

/// `Membership::join` as a library of that protocol version would do it.
std::unique_ptr<Membership> join_with_protocol(const Rendezvous& rendezvous, std::string_view blob,
                                               std::uint32_t protocol);

}  // namespace tightwire::rendezvous
