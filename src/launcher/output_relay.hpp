#pragma once
#include <poll.h>

#include <string>
#include <vector>

#include "rank_process.hpp"

namespace tightwire::launcher {

/// Carries the output of all ranks to our own, line by line with the rank before each. Never waits for a slow reader
/// of ours except by leaving the ranks' output where it is.
class OutputRelay {
 public:
  /// Makes the pipe whose other end a rank gets as its output; `target` is our standard output or standard error.
  PipeEnd add(int rank, int target);

  /// Appends what to wait for.
  void prepare(std::vector<pollfd>& polled) const;
  /// Moves what can be moved; `polled` are the entries that `prepare` appended.
  void serve(const pollfd* polled);

  /// Nothing left to come, and nothing left to hand on.
  bool is_finished() const;
  /// Reads each pipe once more and closes it.
  void stop_reading();
  /// Nobody reads our output any more.
  bool is_broken() const { return broken_; }

 private:
  struct Source {
    int rank;
    std::size_t sink;
    PipeEnd pipe;
    std::string line;
  };
  struct Sink {
    int target;
    std::string waiting;
  };

  void read(Source& source);
  void finish(Source& source);
  void write(Sink& sink);
  void append_line(const Source& source, std::string_view line);

  std::vector<Source> sources_;
  std::vector<Sink> sinks_;
  bool broken_ = false;
};

}  // namespace tightwire::launcher
