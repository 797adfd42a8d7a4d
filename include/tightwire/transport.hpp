#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/error.hpp>

namespace tightwire {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

/// When a limit from `from` on is over. Limits of more than a century are one: clocks count no further.
inline TimePoint deadline_after(std::chrono::milliseconds limit, TimePoint from = Clock::now()) {
  constexpr std::chrono::milliseconds kCentury = std::chrono::hours(24 * 36525);
  return from + std::clamp(limit, std::chrono::milliseconds(0), kCentury);
}

/// One message of a round. The bytes stay the transport's until the round is done.
struct Message {
  enum class Kind : std::uint8_t { send, receive };
  Kind kind;
  int peer;           ///< a rank other than our own
  std::uint64_t tag;  ///< 48 bits; the n-th send to a peer with a tag meets its n-th receive with that tag from us
  std::byte* data;
  std::size_t bytes;  ///< a receive that meets another size fails with Errc::corrupt
  /// Of a receive, if not null: holds `data`. A transport whose ranks share memory may leave the bytes where their
  /// sender has them, write that place here instead, and leave `data` as it is. They stay until `Transport::release`.
  const std::byte** place = nullptr;
};

/// Throws Error(invalid_argument) for a message that no transport can move: to or from ourselves or a rank that is not
/// there, of a tag above 48 bits, or of bytes that are nowhere.
inline void require_valid(std::span<const Message> round, int rank, int size) {
  for (const Message& message : round) {
    const auto refuse = [&](const std::string& what) {
      throw Error(Errc::invalid_argument, "rank " + std::to_string(rank) + ": message to or from rank " +
                                              std::to_string(message.peer) + ": " + what);
    };
    if (message.peer < 0 || message.peer >= size || message.peer == rank)
      refuse("no such peer among " + std::to_string(size) + " ranks");
    if (message.tag >> 48 != 0) refuse("tag " + std::to_string(message.tag) + " has more than 48 bits");
    if (message.data == nullptr && message.bytes != 0)
      refuse("null data of " + std::to_string(message.bytes) + " bytes");
  }
}

/// Whether two pieces of memory share a byte.
inline bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

/// Ranks as text for an error, each once: "1, 3".
inline std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

/// A posted round. 0 stands for "nothing posted" and is always done.
using Ticket = std::uint64_t;

/// Moves bytes between the ranks of one job; knows nothing of codecs or gradients.
///
/// Safe to call from several threads, but for one that says otherwise (`any_thread`). Never blocks except in `idle`,
/// and there no longer than asked. After an Error from any call the transport is closed: every later call throws the
/// same error.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// What errors call a rank: its number in the job, where this is a part of one.
  virtual int named(int rank) const noexcept { return rank; }
  /// The mode really in force, for people: "in-process", "ucx: posix cma to 3 peers".
  virtual std::string describe() const = 0;

  /// Announces long-lived memory that messages will use, so that it is registered once and not per message.
  virtual void attach(std::span<std::byte> /*memory*/) {}
  /// The same of whole pages that are the caller's alone and registered with nobody else, as those of a Workspace: a
  /// transport may put pages under them that peers see, too. Contents stay, as in `detach`; nobody else uses the memory
  /// during either.
  virtual void attach_pages(std::span<std::byte> pages) { attach(pages); }
  /// Ends it: once this returns the transport does not touch the memory any more. Messages that still use it are given
  /// up, which closes the transport.
  virtual void detach(std::span<std::byte> memory) noexcept = 0;

  /// Starts every message and returns at once.
  virtual Ticket post(std::span<const Message> round) = 0;
  /// Makes progress; true when every message of the round is complete, after which the ticket is spent.
  /// Throws Error(peer_lost | transport | corrupt).
  virtual bool done(Ticket ticket) = 0;
  /// Ends the use of what the receives of a round that is done were lent (`Message::place`). Sends of their peers are
  /// complete only then.
  virtual void release(Ticket /*ticket*/) {}
  /// Returns when a message completed, a peer was lost or `wake` was called, and at the latest at `until`. It may
  /// return early for no reason. Spins a little, then yields, then sleeps.
  virtual void idle(TimePoint until) = 0;
  /// Makes a concurrent `idle` return. Callable from any thread.
  virtual void wake() noexcept = 0;
  /// Ranks whose messages an unfinished round still waits for, as text for an error: "1, 3".
  virtual std::string waiting_for(Ticket ticket) const = 0;

  /// Gives up: every rank that waits on this one, now or later, gets Error(peer_lost) with `reason` at once.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// What protects a frame on this transport: a checksum of its bytes, or 0 where there is no wire to protect it from.
  /// The same for all ranks.
  virtual std::uint64_t checksum(std::span<const std::byte> /*payload*/) const noexcept { return 0; }

  /// Whether peers read what is sent from its place, each with a core of its own, so that it is better not left in the
  /// caches of the sender.
  virtual bool shares_memory() const noexcept { return false; }

  /// Whether any thread may use it, rather than the one alone that opened it: what works in the background needs that.
  virtual bool any_thread() const noexcept { return true; }

  /// Of one that reaches some peers through memory and others not: whether messages to this one go over a wire, and so
  /// need what `checksum` gives. The same seen from the peer; peers of one rank without a wire have none between them.
  virtual bool has_wire_to(int /*peer*/) const noexcept { return true; }

  /// Equal for ranks that share a node, with links inside that are faster than those to other nodes. One process is one
  /// node.
  virtual std::uint64_t node() const noexcept { return 0; }

  /// A number for the next user of this transport (a Session), under which its ranks greet each other. Users are made
  /// in the same order on every rank.
  std::uint32_t next_channel() noexcept { return channels_.fetch_add(1, std::memory_order_relaxed); }
  /// The first of so many numbers for messages that are no greetings. Rank 0 takes them for all ranks, which may have
  /// different users under way at once (`agree_on_channels`). Of 22 bits each: what is made after four million others
  /// shares its messages' tags with the first.
  std::uint32_t take_channels(std::uint32_t count) noexcept {
    return taken_.fetch_add(count, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint32_t> channels_{0};
  std::atomic<std::uint32_t> taken_{0};
};

/// Throws Error(unsupported) where a call would work in the background and only one thread may use the transport.
inline void require_any_thread(const Transport& transport, const std::string& call) {
  if (transport.any_thread()) return;
  throw Error(Errc::unsupported,
              "rank " + std::to_string(transport.rank()) + ": " + call +
                  " works in the background, and only the thread that opened this transport may use it: " +
                  transport.describe());
}

}  // namespace tightwire
