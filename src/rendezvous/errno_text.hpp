#pragma once
#include <string>
#include <system_error>

namespace tightwire::rendezvous {

/// "Address already in use (errno 98)".
inline std::string errno_text(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

}  // namespace tightwire::rendezvous
