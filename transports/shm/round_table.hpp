#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include <tightwire/round_pool.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::shm {

struct Round;

/// One message under way. Stays where it is for the life of the table.
struct Request {
  Round* round = nullptr;
  Request* next = nullptr;           ///< in its round, or in the pool
  Request* next_in_queue = nullptr;  ///< of its lane
  Message message{};
  std::size_t moved = 0;              ///< bytes through the stream, or copied from
  const std::byte* source = nullptr;  ///< the place of an offer
  std::uint64_t id = 0;               ///< of an offer: what its sender calls it
  enum class State : std::uint8_t { under_way, complete, lent } state = State::under_way;
};

/// A posted round, kept by RoundPool.
struct Round {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  std::uint32_t incomplete = 0;
  std::uint32_t lent = 0;
  bool in_use = false;
  bool is_spent = false;  ///< but what it was lent is not given back
  Request* first = nullptr;
  Round* next_free = nullptr;
};

/// The rounds in flight and their messages. Records are pooled: it allocates only when more are in flight than ever
/// before. Its owner serialises all calls.
class RoundTable {
 public:
  Round& open();
  Request& add(Round& round, const Message& message);
  static Ticket ticket(const Round& round) noexcept { return RoundPool<Round>::ticket(round); }
  Round* find(Ticket ticket) noexcept { return rounds_.find(ticket); }
  const Round* find(Ticket ticket) const noexcept { return rounds_.find(ticket); }
  /// Takes a round back of which nothing is under way or lent.
  void close(Round& round) noexcept;

  /// A lent receive is complete, too.
  void complete(Request& request, bool is_lent = false) noexcept;

  std::uint64_t completed_count() const noexcept { return completed_; }
  std::size_t incomplete_count() const noexcept { return incomplete_; }
  /// True if a message under way uses some of `memory`.
  bool uses(std::span<const std::byte> memory) const noexcept;
  /// Ranks that messages of `round` wait for, ascending: "1, 3".
  static std::string waiting_for(const Round& round);
  /// Calls `visit` with every message that is lent.
  template <class Visit>
  void for_each_lent(const Visit& visit) {
    for (Request& request : requests_)
      if (request.round != nullptr && request.state == Request::State::lent) visit(request);
  }

 private:
  RoundPool<Round> rounds_;
  std::deque<Request> requests_;
  Request* free_requests_ = nullptr;
  std::uint64_t completed_ = 0;
  std::size_t incomplete_ = 0;
};

}  // namespace tightwire::shm
