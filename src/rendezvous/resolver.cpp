#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "errno_text.hpp"
#include "socket.hpp"

namespace tightwire::rendezvous {
namespace {

struct Lookup {
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  int status = 0;
  std::vector<SocketAddress> found;
};

std::vector<SocketAddress> look_up(const std::string& host, int flags, int& status) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  status = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (status != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<SocketAddress> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    found.push_back(address);
  }
  return found;
}

void set_ports(std::vector<SocketAddress>& addresses, std::uint16_t port) {
  for (SocketAddress& address : addresses) address.set_port(port);
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::uint16_t SocketAddress::port() const noexcept {
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  }
}

bool SocketAddress::is_loopback() const noexcept {
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr) != 0;
  }
  return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24U == 127;
}

std::string SocketAddress::text() const {
  constexpr std::string_view kMapped = "::ffff:";
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  if (storage.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(storage);
    ::inet_ntop(AF_INET6, &six.sin6_addr, buffer.data(), buffer.size());
    const std::string host = buffer.data();
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return host.substr(kMapped.size()) + ":" + std::to_string(port());
    return "[" + host + "]:" + std::to_string(port());
  }
  ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, buffer.data(), buffer.size());
  return std::string(buffer.data()) + ":" + std::to_string(port());
}

std::vector<SocketAddress> parse_numeric(const std::string& host, std::uint16_t port) {
  int status = 0;
  auto found = look_up(host, AI_NUMERICHOST, status);
  set_ports(found, port);
  return found;
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, TimePoint until) {
  if (auto numeric = parse_numeric(host, port); !numeric.empty()) return numeric;
  if (host == "localhost") return {loopback(port)};
  // getaddrinfo knows no limit, so it runs in a thread of its own that may outlive the wait.
  const auto lookup = std::make_shared<Lookup>();
  try {
    std::thread([lookup, host] {
      int status = 0;
      auto found = look_up(host, AI_ADDRCONFIG, status);
      const std::lock_guard lock(lookup->mutex);
      lookup->status = status;
      lookup->found = std::move(found);
      lookup->done = true;
      lookup->finished.notify_all();
    }).detach();
  } catch (const std::system_error& error) {
    throw Error(Errc::no_memory, std::string("cannot start a thread to look up '") + host + "': " + error.what());
  }
  std::unique_lock lock(lookup->mutex);
  if (!lookup->finished.wait_until(lock, until, [&] { return lookup->done; })) {
    throw Error(Errc::transport, "looking up host '" + host + "' took too long");
  }
  if (lookup->status != 0 || lookup->found.empty()) {
    throw Error(Errc::transport, "host '" + host + "' cannot be found: " + ::gai_strerror(lookup->status));
  }
  set_ports(lookup->found, port);
  return lookup->found;
}

SocketAddress loopback(std::uint16_t port) { return parse_numeric("127.0.0.1", port).front(); }

std::vector<SocketAddress> reachable_addresses(std::uint16_t port) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw Error(Errc::transport, "cannot list the network interfaces: " + errno_text(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<SocketAddress> four;
  std::vector<SocketAddress> six;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    SocketAddress address;
    if (entry->ifa_addr->sa_family == AF_INET) {
      address.length = sizeof(sockaddr_in);
      std::memcpy(&address.storage, entry->ifa_addr, address.length);
      four.push_back(address);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      address.length = sizeof(sockaddr_in6);
      std::memcpy(&address.storage, entry->ifa_addr, address.length);
      if (!IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6&>(address.storage).sin6_addr)) six.push_back(address);
    }
  }
  four.insert(four.end(), six.begin(), six.end());
  set_ports(four, port);
  return four;
}

std::string machine_name() {
  struct stat space {};
  const bool known = ::stat("/proc/self/ns/net", &space) == 0;
  return first_line("/proc/sys/kernel/random/boot_id") + "/" + (known ? std::to_string(space.st_ino) : "unknown");
}

}  // namespace tightwire::rendezvous
