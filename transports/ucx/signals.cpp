#include "signals.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/debug.h>

#include <array>
#include <cstdlib>

namespace tightwire::ucx {
namespace {

bool is_handled_by_ucx(int number) noexcept {
  struct sigaction action {};
  if (sigaction(number, nullptr, &action) != 0) return false;
  void* handler = (action.sa_flags & SA_SIGINFO) != 0 ? reinterpret_cast<void*>(action.sa_sigaction)
                                                      : reinterpret_cast<void*>(action.sa_handler);
  Dl_info of_handler{};
  Dl_info of_ucx{};
  return handler != nullptr && dladdr(handler, &of_handler) != 0 &&
         dladdr(reinterpret_cast<void*>(&ucs_debug_disable_signal), &of_ucx) != 0 &&
         of_handler.dli_fbase == of_ucx.dli_fbase;
}

}  // namespace

void restore_signal_handlers() noexcept {
  constexpr std::array kErrorSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
  if (std::getenv("UCX_HANDLE_ERRORS") == nullptr)
    for (const int number : kErrorSignals)
      if (is_handled_by_ucx(number)) ucs_debug_disable_signal(number);
  if (std::getenv("UCX_DEBUG_SIGNO") == nullptr && is_handled_by_ucx(SIGHUP)) ucs_debug_disable_signal(SIGHUP);
}

}  // namespace tightwire::ucx
