#include "waiting.hpp"

#include <algorithm>

#include "shm_transport.hpp"

namespace tightwire::shm {
namespace {

/// While a peer's process has ended, how soon to ask Membership again for the reason.
constexpr std::chrono::milliseconds kDeathSleep{5};

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
  if (sleepers_ != 0) wake_sleepers();  // another thread of ours may wait for it
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
void ShmTransport::give_way() noexcept {
  constexpr int kMostYields = 200;
  for (int yield = 0; yield < kMostYields && entering_.load(std::memory_order_relaxed) != 0; ++yield) sched_yield();
}

void ShmTransport::idle(TimePoint until) {
  TransportPart* const self = this;
  wait_for_news({&self, 1}, looks_, until);
}

bool ShmTransport::look() {
  const auto lock = enter();
  require_open();
  progress();
  return news_.load() != heard_by_caller();
}

void ShmTransport::check_peers() {
  const auto lock = enter();
  require_open();
  require_healthy();
}

void ShmTransport::hear() {
  const auto lock = enter();
  heard_by_caller() = news_.load();
}

/// Says that it sleeps, then looks once more; who has news does it the other way round.
std::chrono::milliseconds ShmTransport::going_to_sleep() {
  const auto lock = enter();
  ++sleepers_;
  tell_sleepers();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // that of Lane::ring_bell is between the same two
  const bool may_sleep = news_.load() == heard_by_caller() && !has_news();
  if (!may_sleep) return std::chrono::milliseconds{0};
  return death_ ? kDeathSleep : longest_sleep_;
}

void ShmTransport::end_sleep() noexcept {
  const std::lock_guard lock(mutex_);
  // The last one to wake silences the bell: earlier, another sleeper could go on sleeping.
  --sleepers_;
  tell_sleepers();
  if (sleepers_ == 0) own_->bell.silence();
}

std::array<int, 3> ShmTransport::descriptors() const noexcept {
  const std::lock_guard lock(mutex_);
  // Once one has ended it would be readable for ever.
  return {own_->bell.descriptor(), membership_->loss_descriptor(), death_ ? -1 : processes_.descriptor()};
}

void ShmTransport::wake_sleepers() noexcept { own_->bell.ring(); }

void ShmTransport::wake() noexcept {
  if (origin_.in_forked_child()) return;
  announce();
  wake_sleepers();
}

}  // namespace tightwire::shm
