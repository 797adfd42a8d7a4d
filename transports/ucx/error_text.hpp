#pragma once
#include <ucs/type/status.h>

#include <string>
#include <string_view>

#include <tightwire/error.hpp>

#include "log_capture.hpp"

namespace tightwire::ucx {

inline std::string status_text(ucs_status_t status) { return ucs_status_string(status); }

/// Throws Error(transport) that says what we tried and what UCX answered.
inline void require_ok(ucs_status_t status, std::string_view action) {
  if (status == UCS_OK) return;
  throw Error(status == UCS_ERR_NO_MEMORY ? Errc::no_memory : Errc::transport,
              "ucx: " + std::string(action) + ": " + status_text(status) + LogCapture::text());
}

}  // namespace tightwire::ucx
