#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/error.hpp>
#include <tightwire/rendezvous.hpp>

/// Runs each rank of a test in a process of its own, as a job would, under a hard time limit.
namespace tightwire::testing {

/// A fresh folder for one job's meeting file, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tightwire-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string random_key() {
  std::random_device source;
  std::string key;
  for (int word = 0; word < 4; ++word) key += std::to_string(source()) + "-";
  return key;
}

/// How one rank ended.
struct RankResult {
  int exit_status = -1;  ///< what it returned; -1 if it did not exit by itself
  int signal = 0;        ///< the signal that ended it, or 0
  bool out_of_time = false;
  std::string text;  ///< everything it wrote to stdout and stderr
};

struct JobOptions {
  std::chrono::milliseconds limit{30'000};    ///< of the whole job: then every rank left is killed
  std::chrono::milliseconds timeout{10'000};  ///< Rendezvous::timeout
  /// Called in the parent while the ranks run, with their process ids; may send signals.
  std::function<void(const std::vector<pid_t>&)> meanwhile = [](const std::vector<pid_t>&) {};
};

/// What a rank does; the status its process exits with. An exception is written out and becomes status 99.
using RankFunction = std::function<int(const Rendezvous&)>;

namespace detail {

struct Process {
  pid_t id = -1;
  int output = -1;
};

[[noreturn]] inline void become_rank(const RankFunction& function, const Rendezvous& rendezvous, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  ::close(output);
  int status = 99;
  try {
    status = function(rendezvous);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: Error %d: %s\n", rendezvous.rank, static_cast<int>(error.code()), error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rendezvous.rank, error.what());
  }
  std::fflush(nullptr);
  std::exit(status);  // and not _exit: leak checkers and libraries' destructors belong to what is tested
}

/// Reads what is there; false once the writer has closed its end.
inline bool drain(Process& process, std::string& text) {
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t count = ::read(process.output, piece.data(), piece.size());
    if (count > 0) text.append(piece.data(), static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (count < 0) return true;
  }
}

inline void collect(std::vector<Process>& processes, std::vector<RankResult>& results,
                    std::chrono::steady_clock::time_point until) {
  std::size_t open = processes.size();
  while (open != 0) {
    std::vector<pollfd> polled;
    for (const Process& process : processes) polled.push_back({.fd = process.output, .events = POLLIN, .revents = 0});
    poll(polled.data(), polled.size(), 50);
    for (std::size_t rank = 0; rank < processes.size(); ++rank) {
      if (processes[rank].output < 0 || drain(processes[rank], results[rank].text)) continue;
      ::close(std::exchange(processes[rank].output, -1));
      --open;
    }
    if (std::chrono::steady_clock::now() < until) continue;
    for (std::size_t rank = 0; rank < processes.size(); ++rank) {
      results[rank].out_of_time = processes[rank].output >= 0;
      kill(processes[rank].id, SIGKILL);
    }
    until = std::chrono::steady_clock::time_point::max();
  }
}

}  // namespace detail

/// Starts `size` processes that call `function`, each with its own rank, and waits for them all.
inline std::vector<RankResult> run_ranks(int size, const RankFunction& function, const JobOptions& options = {}) {
  const TemporaryFolder folder;
  const auto until = std::chrono::steady_clock::now() + options.limit;
  Rendezvous rendezvous{.rank = 0,
                        .size = size,
                        .address = "file://" + (folder.path() / "meeting").string(),
                        .key = random_key(),
                        .timeout = options.timeout};
  std::vector<detail::Process> processes;
  std::vector<RankResult> results(static_cast<std::size_t>(size));
  std::fflush(nullptr);  // what is buffered here must not be written again by every child
  for (rendezvous.rank = 0; rendezvous.rank < size; ++rendezvous.rank) {
    std::array<int, 2> pipe{};
    if (pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
    const pid_t id = fork();
    if (id == 0) {
      for (const detail::Process& other : processes) ::close(other.output);
      ::close(pipe[0]);
      detail::become_rank(function, rendezvous, pipe[1]);
    }
    ::close(pipe[1]);
    fcntl(pipe[0], F_SETFL, O_NONBLOCK);
    processes.push_back({.id = id, .output = pipe[0]});
  }
  std::vector<pid_t> ids;
  for (const detail::Process& process : processes) ids.push_back(process.id);
  options.meanwhile(ids);
  detail::collect(processes, results, until);
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    int status = 0;
    waitpid(processes[rank].id, &status, 0);
    if (WIFEXITED(status)) results[rank].exit_status = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) results[rank].signal = WTERMSIG(status);
  }
  return results;
}

/// What went wrong in ranks that did not end with status 0, with their output; empty if all did.
inline std::string complaints(const std::vector<RankResult>& results) {
  std::string text;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    if (result.exit_status == 0) continue;
    text += "rank " + std::to_string(rank) + " ended with status " + std::to_string(result.exit_status) + ", signal " +
            std::to_string(result.signal) + (result.out_of_time ? ", out of time" : "") + ":\n" + result.text + "\n";
  }
  return text;
}

}  // namespace tightwire::testing
