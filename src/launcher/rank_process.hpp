#pragma once
#include <sys/types.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

namespace tightwire::launcher {

/// One end of a pipe. Unlike rendezvous::Descriptor it stays open in a child of fork() until that runs its program.
class PipeEnd {
 public:
  PipeEnd() = default;
  explicit PipeEnd(int value) : value_(value) {}
  PipeEnd(PipeEnd&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  PipeEnd& operator=(PipeEnd&& other) noexcept;
  PipeEnd(const PipeEnd&) = delete;
  PipeEnd& operator=(const PipeEnd&) = delete;
  ~PipeEnd() { close(); }

  int get() const noexcept { return value_; }
  void close() noexcept;

 private:
  int value_ = -1;
};

struct Pipe {
  PipeEnd read;
  PipeEnd write;
};
/// Throws Error(internal).
Pipe make_pipe();

/// What a rank is to run, and with what.
struct RankProgram {
  std::vector<std::string> command;
  std::vector<std::string> environment;  ///< "NAME=value"
  bool reads_input = false;
  int output = -1;  ///< descriptor that becomes its standard output; -1: ours
  int errors = -1;
  sigset_t signal_mask{};
};

/// How starting went: a process, or the errno of what failed.
struct StartedRank {
  pid_t process = -1;
  int error = 0;
};

/// Starts the program in a process group of its own. It gets SIGKILL when the calling thread ends.
StartedRank start_rank(const RankProgram& program);

/// Our environment, with those variables set anew.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace tightwire::launcher
