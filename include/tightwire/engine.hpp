#pragma once
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

/// Drives the reductions of a Session side by side, so that their order of start may differ between ranks. Who waits
/// for a reduction drives all of them; while nobody waits, a thread of the engine does.
///
/// The most urgent goes first. While one that runs in the background is known to be under way on all ranks, since
/// frames of all have come, and has more chunks than are on the wire, less urgent ones begin no chunk. No rank needs to
/// be asked for that, and none waits for another in vain: of what all ranks have begun, the most urgent is held back on
/// no rank.
class Engine {
 public:
  /// The reductions of a bucket under way. Owned by it, used again for every step.
  struct Operation {
    std::vector<std::unique_ptr<Reduction>> reductions;
    std::string name;      ///< for errors: "bucket 3 (conv1.weight)"
    std::size_t turn = 0;  ///< the least is the most urgent; equal on all ranks
    bool background = false, launched = false;
    bool running = false;
    std::exception_ptr error;
    TimePoint began, ended;
    TimePoint progressed;
    Statistics statistics;
    double busy_seconds = 0;  ///< see StepStatistics: of this operation what no other one counts

    bool advance() {
      bool progressed_now = false;
      for (const auto& reduction : reductions) progressed_now = reduction->advance() || progressed_now;
      return progressed_now;
    }
    bool wants_wire() const {
      return background && std::any_of(reductions.begin(), reductions.end(),
                                       [](const auto& reduction) { return reduction->wants_wire(); });
    }
    bool finished() const {
      return std::all_of(reductions.begin(), reductions.end(),
                         [](const auto& reduction) { return reduction->finished(); });
    }
    std::string waiting_for() const {
      for (const auto& reduction : reductions)
        if (!reduction->finished()) return reduction->waiting_for();
      return "none";
    }
  };

  Engine(std::shared_ptr<Transport> transport, std::chrono::milliseconds timeout, std::size_t operations)
      : transport_(std::move(transport)), timeout_(timeout) {
    arrived_.reserve(operations);
    active_.reserve(operations);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    transport_->wake();
    if (thread_.joinable()) thread_.join();
  }

  /// Throws the error that closed this engine, if one did.
  void require_open() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

  /// Every later call throws this error, which the peers are told of; so does waiting for what is under way.
  void close(std::exception_ptr failure, std::string_view why) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::move(failure);
    }
    transport_->abort(why);
  }

  /// Takes on an operation whose reduction has begun. In the background: the engine's own thread works on it at once.
  /// Throws std::system_error where there is no thread to be had; then nothing was taken on.
  void start(Operation& operation, bool background) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      if (background && !thread_.joinable()) thread_ = std::thread([this] { work(); });
      operation.running = true;
      operation.background = background;
      operation.launched = false;
      operation.error = nullptr;
      operation.began = operation.progressed = Clock::now();
      if (arrived_.empty() && active_.empty()) busy_since_ = operation.began;
      arrived_.push_back(&operation);
      background_ = background_ || background;
      if (!background && !driving_) return;  // the caller will wait, and drive
    }
    changed_.notify_all();
    transport_->wake();
  }

  /// Returns when the operation has ended; throws the error that ended it.
  void wait(Operation& operation) {
    std::unique_lock lock(mutex_);
    while (operation.running) {
      if (driving_)
        changed_.wait(lock);
      else
        drive(lock, [&] { return !operation.running; });
    }
    if (operation.error) std::rethrow_exception(operation.error);
  }

  bool running(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    return operation.running;
  }

 private:
  /// Works on all operations until `enough` (asked under the lock) or none is left.
  template <class Enough>
  void drive(std::unique_lock<std::mutex>& lock, Enough enough) {
    driving_ = true;
    while (!enough() && (!arrived_.empty() || !active_.empty())) {
      take_arrived();
      lock.unlock();
      std::exception_ptr failure;
      try {
        turn();
      } catch (const std::exception& error) {
        failure = std::current_exception();
        transport_->abort(error.what());
      }
      lock.lock();
      retire(failure);
    }
    driving_ = false;
    changed_.notify_all();
  }

  /// Puts what was started behind what is as urgent. Under the lock.
  void take_arrived() {
    const auto before = [](const Operation* a, const Operation* b) { return a->turn < b->turn; };
    for (Operation* operation : arrived_)
      active_.insert(std::upper_bound(active_.begin(), active_.end(), operation, before), operation);
    arrived_.clear();
  }

  /// Looks at operations, the most urgent first, until one in the background did something; sleeps when none could.
  void turn() {
    bool progressed = false, hold = false;
    TimePoint earliest = TimePoint::max(), latest = TimePoint::min();
    for (Operation* operation : active_) {
      if (advance(*operation, hold)) {
        operation->progressed = Clock::now();
        progressed = true;
        if (operation->background) return;
      }
      hold = hold || operation->wants_wire();
      // What others do is no lack of progress of those who let them go first, here or on another rank.
      latest = operation->progressed = std::max(latest, operation->progressed);
      earliest = std::min(earliest, deadline_after(timeout_, latest));
    }
    if (progressed) return;
    for (Operation* operation : active_)
      if (Clock::now() >= deadline_after(timeout_, operation->progressed))
        throw Error(Errc::timeout, "rank " + std::to_string(transport_->rank()) + ": " + operation->name +
                                       " made no progress for " + std::to_string(timeout_.count()) +
                                       " ms; waiting for rank " + operation->waiting_for());
    transport_->idle(earliest);
  }

  /// Returns whether it did something. While held it begins nothing.
  static bool advance(Operation& operation, bool hold) {
    // One without elements is finished before it begins, and no message will ever wake us for it.
    if (operation.finished()) return true;
    if (hold && !operation.launched) return false;
    for (const auto& reduction : operation.reductions) reduction->hold(hold);
    operation.launched = true;
    return operation.advance() || operation.finished();
  }

  /// Takes finished operations off the list, all of them after a failure. Under the lock.
  void retire(const std::exception_ptr& failure) {
    if (failure) {
      failure_ = failure;
      take_arrived();
    }
    const auto has_ended = [&](Operation* operation) { return failure || operation->finished(); };
    if (std::none_of(active_.begin(), active_.end(), has_ended)) return;
    const TimePoint now = Clock::now();
    const auto seconds = [&](TimePoint from) { return std::chrono::duration<double>(now - from).count(); };
    const auto ended = [&](Operation* operation) {
      if (!has_ended(operation)) return false;
      Statistics& s = operation->statistics = {};
      for (const auto& reduction : operation->reductions) s += reduction->statistics();
      s.calls = 1;
      operation->ended = now;
      s.wire_seconds =
          std::max(0.0, seconds(operation->began) - s.encode_seconds - s.combine_seconds - s.decode_seconds);
      operation->busy_seconds = seconds(busy_since_);
      busy_since_ = now;
      operation->error = failure;
      operation->running = false;
      return true;
    };
    std::erase_if(active_, ended);
    changed_.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const bool busy = background_ && (!arrived_.empty() || !active_.empty());
      if (busy && !driving_)
        drive(lock, [&] { return stopping_; });
      else
        changed_.wait(lock);
    }
  }

  std::shared_ptr<Transport> transport_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::vector<Operation*> arrived_;
  std::vector<Operation*> active_;  // touched by the driver alone
  TimePoint busy_since_;            // operations are under way since then, or one has ended
  bool driving_ = false;
  bool background_ = false;
  bool stopping_ = false;
  std::exception_ptr failure_;
};

}  // namespace tightwire
