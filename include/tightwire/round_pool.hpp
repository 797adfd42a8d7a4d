#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include <tightwire/transport.hpp>

namespace tightwire {

/// What a transport keeps of posted rounds. A ticket is a round's slot and how often that was used, so that a spent one
/// is recognised. Records are pooled: it allocates only when more rounds are under way than ever before. Its owner
/// serialises all calls. For a Round with the members `std::uint32_t slot, generation; bool in_use; Round* next_free`.
template <class Round>
class RoundPool {
 public:
  RoundPool() = default;
  /// With room for so many from the start.
  explicit RoundPool(std::size_t count) {
    while (rounds_.size() < count) close(add());
  }
  RoundPool(const RoundPool&) = delete;
  RoundPool& operator=(const RoundPool&) = delete;

  Round& open() {
    if (free_ == nullptr) close(add());
    Round& round = *free_;
    free_ = std::exchange(round.next_free, nullptr);
    ++round.generation;
    round.in_use = true;
    return round;
  }
  static Ticket ticket(const Round& round) noexcept {
    return Ticket{round.generation} << 32 | (Ticket{round.slot} + 1);
  }
  /// The round of a ticket, or null if the ticket is spent or was never given out.
  const Round* find(Ticket ticket) const noexcept {
    const std::uint64_t slot = (ticket & 0xFFFF'FFFFU) - 1;
    if (slot >= rounds_.size()) return nullptr;
    const Round& round = rounds_[slot];
    return round.in_use && round.generation == ticket >> 32 ? &round : nullptr;
  }
  Round* find(Ticket ticket) noexcept { return const_cast<Round*>(std::as_const(*this).find(ticket)); }
  void close(Round& round) noexcept {
    round.in_use = false;
    round.next_free = std::exchange(free_, &round);
  }

 private:
  Round& add() {
    Round& added = rounds_.emplace_back();
    added.slot = static_cast<std::uint32_t>(rounds_.size() - 1);
    return added;
  }

  std::deque<Round> rounds_;
  Round* free_ = nullptr;
};

}  // namespace tightwire
