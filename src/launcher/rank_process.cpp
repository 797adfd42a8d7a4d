#include "rank_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <tightwire/error.hpp>

#include "../rendezvous/errno_text.hpp"

namespace tightwire::launcher {
namespace {

std::vector<char*> to_pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The child's part; between fork() and the new program only what is safe in a signal handler.
[[noreturn]] void become(const RankProgram& program, char* const* command, char* const* environment, pid_t launcher,
                         int error_pipe) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(128 + SIGKILL);
  bool ready = true;
  if (!program.reads_input) {
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ready = nothing >= 0 && ::dup2(nothing, STDIN_FILENO) >= 0;
  }
  if (program.output >= 0) ready = ready && ::dup2(program.output, STDOUT_FILENO) >= 0;
  if (program.errors >= 0) ready = ready && ::dup2(program.errors, STDERR_FILENO) >= 0;
  ::sigprocmask(SIG_SETMASK, &program.signal_mask, nullptr);
  if (ready) ::execvpe(command[0], command, environment);
  const int error = errno;
  static_cast<void>(!::write(error_pipe, &error, sizeof error));
  ::_exit(127);
}

}  // namespace

PipeEnd& PipeEnd::operator=(PipeEnd&& other) noexcept {
  if (this != &other) {
    close();
    value_ = std::exchange(other.value_, -1);
  }
  return *this;
}

void PipeEnd::close() noexcept {
  if (value_ >= 0) ::close(std::exchange(value_, -1));
}

Pipe make_pipe() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(Errc::internal, "cannot make a pipe: " + rendezvous::errno_text(errno));
  }
  return {PipeEnd(ends[0]), PipeEnd(ends[1])};
}

StartedRank start_rank(const RankProgram& program) {
  Pipe error_pipe = make_pipe();
  const std::vector<char*> command = to_pointers(program.command);
  const std::vector<char*> environment = to_pointers(program.environment);
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) return {-1, errno};
  if (process == 0) become(program, command.data(), environment.data(), launcher, error_pipe.write.get());
  ::setpgid(process, process);
  error_pipe.write.close();
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(error_pipe.read.get(), &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(sizeof error)) return {process, 0};
  ::waitpid(process, nullptr, 0);
  return {-1, error};
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool replaced =
        std::any_of(variables.begin(), variables.end(), [&](const auto& variable) { return variable.first == name; });
    if (!replaced) environment.push_back(text);
  }
  for (const auto& [name, value] : variables) environment.emplace_back(name).append("=").append(value);
  return environment;
}

}  // namespace tightwire::launcher
