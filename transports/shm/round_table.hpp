#pragma once
#include <cstddef>
#include <cstdint>

#include "rounds.hpp"

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

  bool is_awaited() const noexcept { return state == State::under_way; }
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

/// The rounds in flight, and what they were lent.
class RoundTable : public Rounds<Round, Request> {
 public:
  Round& open() {
    Round& round = Rounds::open();
    round.lent = 0;
    round.is_spent = false;
    return round;
  }
  /// Of a receive: complete, too.
  void lend(Request& request) noexcept {
    complete(request);
    request.state = Request::State::lent;
    ++request.round->lent;
  }
  /// Calls `visit` with every message that is lent.
  template <class Visit>
  void for_each_lent(const Visit& visit) {
    for (Request& request : requests())
      if (request.round != nullptr && request.state == Request::State::lent) visit(request);
  }
};

}  // namespace tightwire::shm
