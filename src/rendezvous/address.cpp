#include "address.hpp"

#include <charconv>
#include <string_view>

#include <tightwire/error.hpp>

namespace tightwire::rendezvous {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(Errc::invalid_argument, "rendezvous address '" + text + "': " + why +
                                          "; known forms are tcp://host:port, tcp://[ipv6]:port, file:///path and "
                                          "local:///path");
}

Address parse_tcp(const std::string& text, std::string_view rest) {
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0) refuse(text, "host and port expected");
  std::string_view host = rest.substr(0, colon);
  const std::string_view digits = rest.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') refuse(text, "']' expected");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    refuse(text, "an IPv6 address belongs in brackets");
  }
  Address address{Address::Kind::tcp, std::string(host), 0, {}};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (error != std::errc() || end != digits.data() + digits.size() || address.port == 0) {
    refuse(text, "the port is not a number from 1 to 65535");
  }
  return address;
}

}  // namespace

Address parse_address(const std::string& text) {
  const std::string_view whole = text;
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kFile = "file://";
  constexpr std::string_view kLocal = "local://";
  if (whole.starts_with(kTcp)) return parse_tcp(text, whole.substr(kTcp.size()));
  const bool file = whole.starts_with(kFile);
  if (!file && !whole.starts_with(kLocal)) refuse(text, text.empty() ? "it is empty" : "unknown form");
  const std::string_view path = whole.substr(file ? kFile.size() : kLocal.size());
  if (path.size() < 2 || path.front() != '/') refuse(text, "an absolute path expected");
  return Address{file ? Address::Kind::file : Address::Kind::local, {}, 0, std::string(path)};
}

}  // namespace tightwire::rendezvous
