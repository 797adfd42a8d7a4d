#pragma once
#include <ucs/type/status.h>

#include <string>
#include <string_view>

#include <tightwire/error.hpp>

#include "log_capture.hpp"

namespace tightwire::ucx {

inline std::string status_text(ucs_status_t status) { return ucs_status_string(status); }

/// Whether it says that a peer or the way to it is gone. All others are about this process: of it no peer is to blame.
inline bool is_about_peer(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_CANCELED:  // what was under way when the endpoint failed
    case UCS_ERR_IO_ERROR:  // also of memory of a process that is gone
      return true;
    default: break;
  }
  // Negative, from the first to the last.
  return (status <= UCS_ERR_FIRST_LINK_FAILURE && status >= UCS_ERR_LAST_LINK_FAILURE) ||
         (status <= UCS_ERR_FIRST_ENDPOINT_FAILURE && status >= UCS_ERR_LAST_ENDPOINT_FAILURE);
}

inline Errc code_of(ucs_status_t status) { return status == UCS_ERR_NO_MEMORY ? Errc::no_memory : Errc::transport; }

/// Throws Error(transport) that says what we tried and what UCX answered.
inline void require_ok(ucs_status_t status, std::string_view action) {
  if (status == UCS_OK) return;
  throw Error(code_of(status), "ucx: " + std::string(action) + ": " + status_text(status) + LogCapture::text());
}

}  // namespace tightwire::ucx
