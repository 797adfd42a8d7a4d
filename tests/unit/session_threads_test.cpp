#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include <tightwire/core_session.hpp>
#include <tightwire/local_transport.hpp>
#include <tightwire/session.hpp>

namespace tightwire {
namespace session_threads {

/// Handles on their way from the thread that starts to the thread that waits.
class Queue {
 public:
  void push(std::optional<Handle> handle) {
    const std::lock_guard lock(mutex_);
    handles_.push_back(handle);
    changed_.notify_one();
  }
  std::optional<Handle> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !handles_.empty(); });
    const std::optional<Handle> first = handles_.front();
    handles_.pop_front();
    return first;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::optional<Handle>> handles_;
};

// As a framework does that starts buckets amid its backward pass and learns of their end on a thread of its own.
TEST(SessionThreads, OneMayWaitWhileAnotherOneStarts) {
  constexpr int kRanks = 3, kBuckets = 12, kSteps = 5;
  constexpr std::size_t kCount = 64 * 32;
  std::atomic<int> right{0};
  local::run(kRanks, [&](std::shared_ptr<Transport> transport) {
    Session session(transport, {.codec = Int8{.block = 64}});
    for (int i = 0; i < kBuckets; ++i) session.add_bucket(std::array{session.add("w" + std::to_string(i), {64, 32})});
    session.seal();
    std::vector<std::vector<float>> gradients(kBuckets, std::vector<float>(kCount));
    Queue queue;
    std::atomic<int> waited{0};
    std::thread waiter([&] {
      while (std::optional<Handle> handle = queue.pop()) {
        handle->wait();
        ++waited;
      }
    });
    for (int step = 0; step < kSteps; ++step) {
      waited = 0;
      for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
        gradients[bucket].assign(kCount, static_cast<float>(transport->rank()) + static_cast<float>(bucket));
        void* pointer = gradients[bucket].data();
        queue.push(session.start(bucket, {&pointer, 1}));
      }
      while (waited != kBuckets) std::this_thread::yield();
      session.commit();
      if (session.last_step().calls != kBuckets) break;
      for (std::size_t bucket = 0; bucket < kBuckets; ++bucket)
        if (std::abs(gradients[bucket][7] - (1.0f + static_cast<float>(bucket))) < 0.2f) ++right;
    }
    queue.push(std::nullopt);
    waiter.join();
  });
  EXPECT_EQ(right, kRanks * kBuckets * kSteps);
}

}  // namespace session_threads
}  // namespace tightwire
