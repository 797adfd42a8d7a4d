#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

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
  /// or zero if it must not. `woke` follows in any case.
  virtual std::chrono::milliseconds going_to_sleep() = 0;
  virtual void woke() noexcept = 0;
  /// One of them is readable once there is news for a thread that sleeps; -1 stands for none.
  virtual std::array<int, 3> descriptors() const noexcept = 0;

  /// Whether a round that is done was lent something, so that `release` must follow.
  virtual bool lends(Ticket /*ticket*/) const { return false; }
  /// Whether a message under way uses some of `memory`.
  virtual bool uses(std::span<const std::byte> memory) const noexcept = 0;
  /// Ranks that an unfinished round still waits for.
  virtual std::vector<int> silent(Ticket ticket) const = 0;
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
  };
  /// Collective among `ranks`. Once only.
  virtual std::unique_ptr<TransportPart> connect(Job job) = 0;
};

}  // namespace tightwire
