#include "socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>

#include "errno_text.hpp"

namespace tightwire::rendezvous {
namespace {

void set_option(const Descriptor& socket, int level, int name, int value) noexcept {
  ::setsockopt(socket.get(), level, name, &value, sizeof value);
}

Descriptor new_socket(int family) {
  return Descriptor::make([&] { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

[[noreturn]] void throw_listen_error(const SocketAddress& address, int error) {
  throw Error(Errc::transport, "rank 0 cannot listen at " + address.text() + ": " + errno_text(error));
}

/// 0, or the errno of what failed.
int try_listen(const SocketAddress& address, Descriptor& socket) {
  socket = new_socket(address.storage.ss_family);
  if (!socket) return errno;
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address.storage);
    set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr) ? 0 : 1);
  }
  if (::bind(socket.get(), address.raw(), address.length) != 0) return errno;
  if (::listen(socket.get(), SOMAXCONN) != 0) return errno;
  return 0;
}

/// A port of ours that connects to itself: possible when nobody listens on a port the kernel also hands out.
bool connected_to_itself(const Descriptor& socket) {
  SocketAddress peer;
  peer.length = sizeof peer.storage;
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0) return false;
  return peer.text() == local_address(socket).text();
}

}  // namespace

Descriptor listen_at(const SocketAddress& address) {
  Descriptor socket;
  const int error = try_listen(address, socket);
  if (error != 0) throw_listen_error(address, error);
  return socket;
}

Descriptor listen_everywhere(std::uint16_t port) {
  const SocketAddress six = parse_numeric("::", port).front();
  Descriptor socket;
  int error = try_listen(six, socket);
  if (error == 0) return socket;
  const SocketAddress four = parse_numeric("0.0.0.0", port).front();
  if (error != EAFNOSUPPORT && error != EADDRNOTAVAIL) throw_listen_error(four, error);
  return listen_at(four);
}

SocketAddress local_address(const Descriptor& socket) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    throw Error(Errc::transport, "getsockname failed: " + errno_text(errno));
  }
  return address;
}

Descriptor accept_connection(const Descriptor& listener, SocketAddress& from) {
  from.length = sizeof from.storage;
  return Descriptor::make([&] {
    return ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                     SOCK_CLOEXEC | SOCK_NONBLOCK);
  });
}

Descriptor connect_to(const SocketAddress& address, TimePoint until, std::string& problem) {
  const auto fail = [&](int error) {
    problem = "connecting to " + address.text() + ": " + errno_text(error);
    return Descriptor();
  };
  Descriptor socket = new_socket(address.storage.ss_family);
  if (!socket) return fail(errno);
  if (::connect(socket.get(), address.raw(), address.length) != 0) {
    if (errno != EINPROGRESS) return fail(errno);
    pollfd polled{socket.get(), POLLOUT, 0};
    while (poll_until(&polled, 1, until) <= 0) {
      if (Clock::now() >= until) return fail(ETIMEDOUT);
    }
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return fail(error);
  }
  if (connected_to_itself(socket)) return fail(ECONNREFUSED);
  return socket;
}

void configure_connection(const Descriptor& socket, std::chrono::milliseconds limit) noexcept {
  const auto seconds = [&](std::int64_t parts) {
    return static_cast<int>(std::clamp<std::int64_t>(limit.count() / 1000 / parts, 1, 3600));
  };
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds(4));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds(8));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 6);
  const auto bounded = std::clamp<std::int64_t>(limit.count(), 1000, 3'600'000);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(bounded));
}

int poll_until(pollfd* descriptors, std::size_t count, TimePoint until) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  const int wait = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  return ::poll(descriptors, count, wait);
}

}  // namespace tightwire::rendezvous
