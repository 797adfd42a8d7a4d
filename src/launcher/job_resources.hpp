#pragma once
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>

#include <tightwire/error.hpp>

#include "../rendezvous/errno_text.hpp"
#include "rank_process.hpp"

namespace tightwire::launcher {

[[noreturn]] inline void throw_system_error(const std::string& what) {
  throw Error(Errc::internal, what + ": " + rendezvous::errno_text(errno));
}

/// A directory only this user can enter.
class PrivateDirectory {
 public:
  PrivateDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tightwire-run-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw_system_error("cannot make the directory " + pattern);
    path_ = pattern;
  }
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  ~PrivateDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// While it lives, the signals that concern a launcher come as something to read.
class SignalInbox {
 public:
  SignalInbox() {
    sigset_t ours;
    ::sigemptyset(&ours);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&ours, signal);
    inbox_ = PipeEnd(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
    if (inbox_.get() < 0) throw_system_error("cannot watch for signals");
    ::sigaddset(&ours, SIGPIPE);  // a reader of ours that goes away shows as an error of write()
    ::pthread_sigmask(SIG_BLOCK, &ours, &before_);
  }
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;
  ~SignalInbox() {
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    const timespec now{};
    if (::sigismember(&before_, SIGPIPE) == 0) ::sigtimedwait(&pipe, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  int descriptor() const { return inbox_.get(); }
  const sigset_t& mask_before() const { return before_; }
  /// The next signal, or 0.
  int take() const {
    signalfd_siginfo info{};
    if (::read(inbox_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return 0;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  PipeEnd inbox_;
  sigset_t before_{};
};

}  // namespace tightwire::launcher
