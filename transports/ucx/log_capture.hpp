#pragma once
#include <string>

namespace tightwire::ucx {

/// While one lives, what UCX would print on behalf of this thread is kept instead: a library does not write into its
/// program's output, and UCX warns at length about every peer that died. Other users of UCX in the process (an MPI)
/// keep their messages, and so does everybody if the user set UCX_LOG_LEVEL.
class LogCapture {
 public:
  LogCapture() noexcept;
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  ~LogCapture();

  /// The first line kept since the outermost capture of this thread began, in parentheses for the end of an error
  /// text; empty if there was none.
  static std::string text();
};

}  // namespace tightwire::ucx
