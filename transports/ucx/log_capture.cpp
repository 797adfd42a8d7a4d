#include "log_capture.hpp"

#include <dlfcn.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace tightwire::ucx {
namespace {

thread_local int captures = 0;
thread_local std::array<char, 256> first_line{};

// UCX's signature. NOLINTNEXTLINE(readability-function-size)
ucs_log_func_rc_t keep(const char* /*file*/, unsigned /*line*/, const char* /*function*/, ucs_log_level_t level,
                       const ucs_log_component_config_t* /*component*/, const char* format, va_list arguments) {
  if (captures == 0 || level <= UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  if (first_line.front() == '\0') std::vsnprintf(first_line.data(), first_line.size(), format, arguments);
  return UCS_LOG_FUNC_RC_STOP;
}

/// UCX keeps the handler for good, so the library it is in must stay as well.
void stay_loaded() noexcept {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&keep), &self) != 0)
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

void install() noexcept {
  if (std::getenv("UCX_LOG_LEVEL") != nullptr) return;
  stay_loaded();
  ucs_log_push_handler(&keep);
}

}  // namespace

LogCapture::LogCapture() noexcept {
  static std::once_flag installed;
  std::call_once(installed, &install);
  if (captures++ == 0) first_line.front() = '\0';
}

LogCapture::~LogCapture() { --captures; }

std::string LogCapture::text() {
  return first_line.front() == '\0' ? std::string{} : " (UCX: " + std::string(first_line.data()) + ")";
}

}  // namespace tightwire::ucx
