#include "waiting.hpp"

#include "ucx_transport.hpp"

namespace tightwire::ucx {
namespace {

/// UCX handles a bounded number of events per call; a few calls in a row empty its queues without keeping the lock
/// long.
constexpr int kProgressCalls = 8;

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
  TransportPart* const self = this;
  wait_for_news({&self, 1}, 0, until);
}

bool UcxTransport::look() {
  const Entry entry = enter();
  require_open();
  progress();
  return news_.count() != news_.heard_by_this_thread();
}

void UcxTransport::check_peers() {
  const Entry entry = enter();
  require_open();
  require_healthy();
}

std::chrono::milliseconds UcxTransport::going_to_sleep() {
  const Entry entry = enter();
  news_.going_to_sleep();
  // UCX refuses to be armed while it has work at hand: then it must make progress first.
  const bool may_sleep =
      !failure_ && news_.count() == news_.heard_by_this_thread() && ucp_worker_arm(connections_->worker()) == UCS_OK;
  if (!may_sleep) return std::chrono::milliseconds{0};
  return suspicion_ ? kSuspicionSleep : longest_sleep_;
}

void UcxTransport::end_sleep() noexcept {
  const Entry entry(mutex_);
  news_.end_sleep();
}

std::array<int, 3> UcxTransport::descriptors() const noexcept {
  const Entry entry(mutex_);
  return {news_.descriptor(), connections_->event_descriptor(), membership_->loss_descriptor()};
}

}  // namespace tightwire::ucx
