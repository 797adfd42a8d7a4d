#pragma once
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <tightwire/transport.hpp>

#include "descriptor.hpp"

namespace tightwire::rendezvous {

/// An IPv4 or IPv6 address with its port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* raw() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  bool is_loopback() const noexcept;
  /// "192.0.2.1:4711" or "[2001:db8::1]:4711".
  std::string text() const;
};

/// The address written as numbers in `host`, if it is one.
std::vector<SocketAddress> parse_numeric(const std::string& host, std::uint16_t port);
/// All addresses of `host`. Asks the system's resolver, but not beyond `until`. Throws Error(transport).
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, TimePoint until);
/// Loopback, IPv4.
SocketAddress loopback(std::uint16_t port);
/// Addresses of this machine that others may reach: IPv4 first; no loopback, no link-local.
std::vector<SocketAddress> reachable_addresses(std::uint16_t port);

/// Names the machine and network namespace we run in: processes with the same name reach each other by loopback.
std::string machine_name();

/// Listens there. Throws Error(transport) with address and errno.
Descriptor listen_at(const SocketAddress& address);
/// Listens on all interfaces, IPv6 and IPv4 where the system has both.
Descriptor listen_everywhere(std::uint16_t port);
SocketAddress local_address(const Descriptor& socket);
/// Takes one waiting connection; empty with errno set when there is none or it cannot be taken.
Descriptor accept_connection(const Descriptor& listener, SocketAddress& from);

/// Connects, not beyond `until`. On failure returns an empty Descriptor and says why in `problem`.
Descriptor connect_to(const SocketAddress& address, TimePoint until, std::string& problem);

/// Small messages at once, and the end of a silent host noticed within about `limit`.
void configure_connection(const Descriptor& socket, std::chrono::milliseconds limit) noexcept;

/// poll() until the given time; returns early when interrupted by a signal.
int poll_until(pollfd* descriptors, std::size_t count, TimePoint until) noexcept;

}  // namespace tightwire::rendezvous
