#pragma once
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

#include "part.hpp"

namespace tightwire {

inline constexpr std::size_t kMostParts = 2;

/// Sleeps until one of the parts may have news, or `until`. False if one has some already.
///
/// All are told before any is asked once more, and whoever has news does it the other way round; so none is slept
/// through, whichever part it is of.
inline bool sleep_for_news(std::span<TransportPart* const> parts, TimePoint until) {
  std::array<pollfd, 3 * kMostParts> polled{};
  nfds_t count = 0;
  std::chrono::nanoseconds longest = until - Clock::now();
  for (TransportPart* part : parts) {
    longest = std::min<std::chrono::nanoseconds>(longest, part->going_to_sleep());
    for (const int descriptor : part->descriptors())
      polled[count++] = {.fd = descriptor, .events = POLLIN, .revents = 0};
  }
  const bool may_sleep = longest.count() > 0;
  if (may_sleep) {
    const timespec limit = {.tv_sec = static_cast<time_t>(longest.count() / 1'000'000'000),
                            .tv_nsec = static_cast<long>(longest.count() % 1'000'000'000)};
    ppoll(polled.data(), count, &limit, nullptr);
  }
  for (TransportPart* part : parts) part->end_sleep();
  return may_sleep;
}

/// `Transport::idle` of transports between processes: looks so many times, then gives the processor to others between
/// looks, then sleeps.
inline void wait_for_news(std::span<TransportPart* const> parts, int looks, TimePoint until) {
  // A message between running peers takes microseconds, waking up tens of them: before it sleeps, a waiter looks for
  // about as long as waking up would take.
  constexpr std::chrono::microseconds kLookFor{50};
  TimePoint look_until{};
  for (int look = 0;; ++look) {
    bool is_news = false;
    for (TransportPart* part : parts) is_news = part->look() || is_news;
    if (is_news) break;
    for (TransportPart* part : parts) part->check_peers();
    if (look < looks) {
      for (TransportPart* part : parts) part->give_way();
      continue;
    }
    const TimePoint now = Clock::now();
    if (look == looks) look_until = now + kLookFor;
    if (now >= until) break;
    if (now >= look_until && sleep_for_news(parts, until)) continue;
    sched_yield();
    for (TransportPart* part : parts) part->give_way();
  }
  for (TransportPart* part : parts) part->hear();
}

}  // namespace tightwire
