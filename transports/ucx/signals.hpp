#pragma once

namespace tightwire::ucx {

/// Gives back the signal handlers that libucs takes when it is loaded, long before we could set UCX_HANDLE_ERRORS:
/// SIGSEGV, SIGBUS, SIGILL and SIGFPE would print UCX's backtrace into the trainer's output and hide its own handler's,
/// and SIGHUP would no longer end a process whose terminal closed. Handlers that others installed since stay, and so
/// do UCX's if the user asked for them (UCX_HANDLE_ERRORS, UCX_DEBUG_SIGNO).
void restore_signal_handlers() noexcept;

}  // namespace tightwire::ucx
