// Progress and waiting: spin a little, then give the processor to others between looks, then sleep.
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>

#include "ucx_transport.hpp"

namespace tightwire::ucx {
namespace {

/// UCX handles a bounded number of events per call; a few calls in a row empty its queues without keeping the lock
/// long.
constexpr int kProgressCalls = 8;

/// A message between running peers takes microseconds, waking up tens of them: before it sleeps, a waiter looks for
/// about as long as waking up would take.
constexpr std::chrono::microseconds kLookFor{50};

/// What bounds one sleep, should an event be missed that the transports know no descriptor for.
constexpr std::chrono::milliseconds kLongestSleep{100};

/// While UCX suspects a peer, how soon to ask Membership again.
constexpr std::chrono::milliseconds kSuspicionSleep{5};

}  // namespace

void UcxTransport::progress() {
  const std::uint64_t before = table_.completed_count();
  for (int call = 0; call < kProgressCalls && ucp_worker_progress(connections_->worker()) != 0; ++call) {
  }
  if (table_.completed_count() != before) news_.announce();
}

void UcxTransport::idle(TimePoint until) {
  std::uint64_t& heard = news_.heard_by_this_thread();
  const TimePoint look_until = Clock::now() + kLookFor;
  for (;;) {
    Entry entry(mutex_);
    require_open();
    progress();
    if (news_.count() != heard) break;
    require_healthy();
    const TimePoint now = Clock::now();
    if (now >= until) break;
    if (now >= look_until && sleep(entry, heard, until)) continue;
    entry.lock.unlock();
    sched_yield();
  }
  heard = news_.count();
}

bool UcxTransport::sleep(Entry& entry, std::uint64_t heard, TimePoint until) {
  news_.going_to_sleep();
  // UCX refuses to be armed while it has work at hand: then it must make progress first.
  const bool may_sleep = news_.count() == heard && ucp_worker_arm(connections_->worker()) == UCS_OK;
  if (may_sleep) {
    std::array<pollfd, 3> descriptors = {{{.fd = -1, .events = 0, .revents = 0},
                                          {.fd = connections_->event_descriptor(), .events = POLLIN, .revents = 0},
                                          {.fd = membership_->loss_descriptor(), .events = POLLIN, .revents = 0}}};
    const auto longest = suspicion_ ? kSuspicionSleep : kLongestSleep;
    entry.lock.unlock();
    news_.sleep(descriptors, std::min(until, Clock::now() + longest));
    entry.lock.lock();
  }
  news_.woke();
  return may_sleep;
}

}  // namespace tightwire::ucx
