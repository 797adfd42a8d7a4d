#pragma once
#include <cstdint>
#include <string>

namespace tightwire::rendezvous {

/// `Rendezvous::address`, taken apart.
struct Address {
  enum class Kind {
    tcp,    ///< "tcp://host:port"
    file,   ///< "file:///path": rank 0 listens on all interfaces
    local,  ///< "local:///path": as file, but rank 0 listens on loopback only
  };
  Kind kind;
  std::string host;
  std::uint16_t port = 0;
  std::string path;
};

/// Throws Error(invalid_argument) that shows the text and the forms that are known.
Address parse_address(const std::string& text);

}  // namespace tightwire::rendezvous
