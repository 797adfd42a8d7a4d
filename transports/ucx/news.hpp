#pragma once
#include <atomic>
#include <cstdint>

#include <tightwire/transport.hpp>

namespace tightwire::ucx {

/// Counts what a waiting thread wants to hear of (a message completed, `wake`, the end), and wakes those that sleep.
///
/// Every thread has its own mark of what it has heard, so that news which arrived just before a thread begins to wait,
/// or which another thread found while making progress, is never slept through.
class News {
 public:
  News();
  News(const News&) = delete;
  News& operator=(const News&) = delete;
  ~News();

  /// Callable from any thread, without a lock.
  void announce() noexcept;
  std::uint64_t count() const noexcept { return count_.load(); }
  /// What the calling thread has heard of. A thread that waits on more than a few transports in turn may find its mark
  /// lost and then returns early once.
  std::uint64_t& heard_by_this_thread() const noexcept;

  /// A thread that is going to sleep says so first, then looks at the count once more, then sleeps until `descriptor`
  /// is readable, which an announcement makes it, then calls `end_sleep`. `going_to_sleep` and `end_sleep` are called
  /// under one lock.
  void going_to_sleep() noexcept { ++sleepers_; }
  void end_sleep() noexcept;
  int descriptor() const noexcept { return descriptor_; }

 private:
  std::uint64_t id_;
  int descriptor_;
  std::atomic<std::uint64_t> count_{1};
  std::atomic<int> sleepers_{0};
};

}  // namespace tightwire::ucx
