#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tightwire/error.hpp>
#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

/// What bounds one sleep, should news be missed.
inline constexpr std::chrono::milliseconds kLongestSleep{100};

/// How long a part that sees by itself that a peer's process ended waits for Membership's word, which may know the
/// reason.
inline constexpr std::chrono::milliseconds kDeathGrace{100};

/// What is left of a limit, and a little if nothing is: to be told why it was not enough.
inline std::chrono::milliseconds time_left(TimePoint until) {
  return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()),
                  std::chrono::milliseconds{1});
}

/// What a transport says where there is no memory left to say it with; to be made before.
inline Error out_of_memory(int rank) { return {Errc::no_memory, "rank " + std::to_string(rank) + ": out of memory"}; }

/// Leaves a job together with all others. Throws Error(peer_lost) where one was lost before that.
inline void leave_in_order(Membership& membership, TimePoint until) {
  membership.leave(time_left(until));
  if (const auto loss = membership.loss())
    throw Error(Errc::peer_lost, "rank " + std::to_string(loss->rank) + " lost: " + loss->reason);
}

/// A transport to all ranks of a job, or to some, where another one reaches the rest: then a thread waits for both at
/// once (`wait_for_news`).
class TransportPart : public Transport {
 public:
  /// As of a Transport. What arrived before its sender was lost still counts, so progress comes before `check_peers`;
  /// who has several parts makes it on all of them before it asks.
  bool done(Ticket ticket) final {
    if (settle(ticket)) return true;
    check_peers();
    return false;
  }
  /// As `done`, but throws only what keeps the transport from making progress.
  virtual bool settle(Ticket ticket) = 0;
  /// Makes progress. Whether there is what `idle` returns for and the calling thread has not heard of.
  virtual bool look() = 0;
  /// Throws Error(peer_lost | transport | corrupt) where a wait would be in vain.
  virtual void check_peers() = 0;
  /// The calling thread has heard of everything that there is.
  virtual void hear() = 0;
  /// Tells those who could have news that a thread goes to sleep, and then looks once more. For how long it may sleep,
  /// or zero if it must not. `end_sleep` follows in any case.
  virtual std::chrono::milliseconds going_to_sleep() = 0;
  virtual void end_sleep() noexcept = 0;
  /// Lets threads through that wait to call it: one that looks again and again would be faster than they.
  virtual void give_way() noexcept {}
  /// One of them is readable once there is news for a thread that sleeps; -1 stands for none.
  virtual std::array<int, 3> descriptors() const noexcept = 0;

  /// Whether a round that is done was lent something, so that `release` must follow.
  virtual bool lends(Ticket /*ticket*/) const { return false; }
  /// Whether a message under way uses some of `memory`.
  virtual bool uses(std::span<const std::byte> memory) const noexcept = 0;
  /// Ranks that an unfinished round still waits for.
  virtual std::vector<int> silent(Ticket ticket) const = 0;

  /// Before it ends: closing in order takes until then at most, even if its own limit is later.
  void close_by(TimePoint until) noexcept { close_by_ = until; }

 protected:
  TimePoint closing_until(std::chrono::milliseconds limit) const noexcept {
    return std::min(deadline_after(limit), close_by_);
  }

 private:
  TimePoint close_by_ = TimePoint::max();
};

/// What a rank has made for a part before it joins, so that it can tell the others how it is reached.
class PartOpening {
 public:
  PartOpening() = default;
  PartOpening(const PartOpening&) = delete;
  PartOpening& operator=(const PartOpening&) = delete;
  virtual ~PartOpening() = default;

  /// For the others; says so, if the rank cannot be reached.
  virtual std::string blob() const = 0;

  struct Job {
    std::unique_ptr<Membership> membership;
    std::vector<std::string> blobs;   ///< of all ranks
    std::vector<int> ranks;           ///< those that the part reaches, and our own
    std::chrono::milliseconds limit;  ///< of closing
    TimePoint until;                  ///< to connect
    std::chrono::milliseconds longest_sleep = kLongestSleep;
  };
  /// Collective among `ranks`. Once only. Null where they all know that they cannot be connected: then `failure` says
  /// why, and this must stay until all have left the job.
  virtual std::unique_ptr<TransportPart> connect(Job job) = 0;
  virtual std::optional<Error> failure() const { return std::nullopt; }
};

}  // namespace tightwire
