// Progress and waiting: look a little, then give the processor to others between looks, then sleep.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "shm_transport.hpp"

namespace tightwire::shm {
namespace {

/// A message between running peers takes a microsecond, waking up tens of them: before it sleeps, a waiter looks for
/// about as long as waking up would take.
constexpr std::chrono::microseconds kLookFor{50};

}  // namespace

void ShmTransport::progress() {
  const std::uint64_t before = table_.completed_count();
  try {
    for (const auto& lane : lanes_)
      if (lane) lane->progress();
  } catch (const std::exception&) {
    fail_as_thrown();
  }
  if (table_.completed_count() == before) return;
  announce();
  if (own_->head->sleepers.load() != 0) wake_sleepers();  // another thread of ours may wait for it
}

bool ShmTransport::has_news() const noexcept {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane && lane->has_news(); });
}

std::uint64_t& ShmTransport::heard_by_caller() {
  const std::thread::id caller = std::this_thread::get_id();
  for (auto& [thread, news] : heard_)
    if (thread == caller) return news;
  try {
    return heard_.emplace_back(caller, 0).second;
  } catch (const std::exception&) {
    fail_as_thrown();
  }
}

/// A thread that waits takes the mutex again and again, and would get it before those that it has just woken.
void ShmTransport::give_way(std::unique_lock<std::mutex>& lock) {
  constexpr int kMostYields = 200;
  lock.unlock();
  for (int yield = 0; yield < kMostYields && entering_.load(std::memory_order_relaxed) != 0; ++yield) sched_yield();
  lock.lock();
}

void ShmTransport::idle(TimePoint until) {
  std::unique_lock lock = enter();
  std::uint64_t& heard = heard_by_caller();
  TimePoint look_until{};
  for (int look = 0;; ++look) {
    require_open();
    progress();
    if (news_.load() != heard) break;
    require_healthy();
    if (look < looks_) {
      give_way(lock);
      continue;
    }
    const TimePoint now = Clock::now();
    if (look == looks_) look_until = now + kLookFor;
    if (now >= until) break;
    if (now >= look_until) {
      sleep(lock, heard, until);
      continue;
    }
    lock.unlock();
    sched_yield();
    lock.lock();
    if (entering_.load(std::memory_order_relaxed) != 0) give_way(lock);
  }
  heard = news_.load();
}

/// Says that it sleeps, then looks once more, then sleeps; who has news does it the other way round.
void ShmTransport::sleep(std::unique_lock<std::mutex>& lock, std::uint64_t heard, TimePoint until) {
  SegmentHead& head = *own_->head;
  head.sleepers.fetch_add(1);
  const std::uint32_t bell = head.bell.load();
  const bool may_sleep = news_.load() == heard && !has_news();
  lock.unlock();
  if (may_sleep) {
    const auto longest = std::min<std::chrono::nanoseconds>(until - Clock::now(), longest_sleep_);
    const auto count = std::max<std::chrono::nanoseconds::rep>(longest.count(), 0);
    const timespec limit = {.tv_sec = static_cast<time_t>(count / 1'000'000'000),
                            .tv_nsec = static_cast<long>(count % 1'000'000'000)};
    syscall(SYS_futex, &head.bell, FUTEX_WAIT, bell, &limit, nullptr, 0);
  }
  head.sleepers.fetch_sub(1);
  lock.lock();
  if (!may_sleep) give_way(lock);
}

void ShmTransport::wake_sleepers() noexcept {
  own_->head->bell.fetch_add(1);
  syscall(SYS_futex, &own_->head->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ShmTransport::wake() noexcept {
  if (in_forked_child()) return;
  announce();
  wake_sleepers();
}

}  // namespace tightwire::shm
