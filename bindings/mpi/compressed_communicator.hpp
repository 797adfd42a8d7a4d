#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <tightwire/error.hpp>
#include <tightwire/statistics.hpp>
#include <tightwire/transport.hpp>

#include "../../transports/mpi/take_over.hpp"
#include "settings.hpp"

namespace tightwire {
class Session;
}

namespace tightwire::mpi {

/// One sum of floats over a communicator.
struct Call {
  const float* contribution = nullptr;  ///< null: it is in `sum`
  float* sum = nullptr;
  std::size_t count = 0;
};

/// The compressed calls on one communicator of the program: in the order of the program, which MPI promises to be the
/// same on all ranks, so that Sessions come into being alike.
class CompressedCommunicator {
 public:
  /// Begins to duplicate the communicator, which is all that must happen in the order of the program's own calls.
  CompressedCommunicator(MPI_Comm theirs, const Settings& settings);
  ~CompressedCommunicator();

  /// Returns with the sum in place. Throws what ended it, and from then on always.
  void all_reduce(const Call& call);
  /// Returns at once; `ended` is called from a thread of ours, with the error or null. Throws where there is no memory
  /// or thread for it; then `ended` is not called.
  void start(const Call& call, std::function<void(const Error*)> ended);
  /// Ends it, after all that was started. Collective, and bounded by the time limit.
  void close() noexcept;

  const Statistics& statistics() const { return total_; }

 private:
  struct Started {
    Call call;
    std::function<void(const Error*)> ended;
  };
  struct Slot;

  void reduce(const Call& call);
  Slot& slot_for(std::size_t count);
  std::unique_ptr<Slot> make_slot(std::size_t count);
  void work();
  void clear_up() noexcept;

  const Settings settings_;
  std::unique_ptr<Duplicate> duplicate_;  // until the transport has it
  int rank_ = 0;
  std::shared_ptr<Transport> transport_;
  std::list<std::unique_ptr<Slot>> slots_;  // with feedback in the order of a step, else the last used first
  std::uint64_t calls_ = 0;
  std::optional<Error> failure_;
  Statistics total_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Started> queue_;
  bool busy_ = false;
  bool closing_ = false;
  bool closed_ = false;
  bool closed_by_itself_ = false;  // by the thread below, which clears up once it has done what was started
  std::thread thread_;
  std::atomic<std::thread::id> worker_;  // of that thread
};

}  // namespace tightwire::mpi
