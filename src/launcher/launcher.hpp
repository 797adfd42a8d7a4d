#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tightwire {

/// A job of several ranks on this machine.
struct LaunchOptions {
  int ranks = 1;
  /// Program and arguments, looked up in PATH; the same for every rank.
  std::vector<std::string> command;
  /// Put before the command, "{rank}" replaced: {"ip", "netns", "exec", "ns{rank}"}. With a wrapper the ranks may live
  /// in different networks, so rank 0 listens on all interfaces instead of loopback.
  std::vector<std::string> wrapper;
  /// Put "[rank] " before every line of output. Whole lines of the ranks never mix.
  bool prefix_output = false;
  /// How long the other ranks may go on after one has failed; they usually notice and end by themselves.
  std::chrono::milliseconds grace{10'000};
  /// How long a rank may take to end after SIGTERM before it gets SIGKILL.
  std::chrono::milliseconds kill_after{3'000};
  /// Told what happened, one line at a time: "rank 2 (process 4711) was killed by signal 9 (Killed)".
  std::function<void(const std::string& line)> report;
};

/// Runs the job and returns when every rank has ended: 0, or the status of the rank that failed first, where
/// 128 + n stands for signal n, 127 for a command that is not found and 126 for one that cannot be run. A rank that was
/// killed comes before ranks that exited shortly before it: they may have noticed sooner than we could.
///
/// Each rank gets TIGHTWIRE_RANK, TIGHTWIRE_WORLD_SIZE, TIGHTWIRE_LOCAL_RANK, TIGHTWIRE_RENDEZVOUS (a file in a private
/// directory that is removed at the end) and TIGHTWIRE_JOB_KEY (random), and RANK, WORLD_SIZE, LOCAL_RANK. Each rank
/// leads a process group, of which nothing survives the rank. Rank 0 reads our standard input unless that is a
/// terminal; the others read nothing. SIGINT, SIGTERM and SIGHUP are passed on; a second one kills. Ranks die with us.
///
/// Takes these signals from the calling thread only, so call it from a program with one thread.
/// Throws Error(invalid_argument) for options that cannot work, Error(internal) when the system refuses.
int launch(const LaunchOptions& options);

}  // namespace tightwire
