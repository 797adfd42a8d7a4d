#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include <tightwire/round_pool.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

/// What transports between processes keep of rounds in flight: their messages. Records are pooled: it allocates only
/// when more are in flight than ever before. Its owner serialises all calls. For a Request with the members
/// `Round* round; Request* next; Message message; enum State { under_way, complete, ... } state`, and a Round with
/// those that RoundPool asks for and `std::uint32_t incomplete; Request* first`.
template <class Round, class Request>
class Rounds {
 public:
  Round& open() { return rounds_.open(); }
  Request& add(Round& round, const Message& message) {
    if (free_requests_ == nullptr) free_requests_ = &requests_.emplace_back();
    Request& request = *free_requests_;
    free_requests_ = request.next;
    request = Request{};
    request.round = &round;
    request.next = std::exchange(round.first, &request);
    request.message = message;
    ++round.incomplete;
    ++incomplete_;
    return request;
  }
  static Ticket ticket(const Round& round) noexcept { return RoundPool<Round>::ticket(round); }
  Round* find(Ticket ticket) noexcept { return rounds_.find(ticket); }
  const Round* find(Ticket ticket) const noexcept { return rounds_.find(ticket); }
  /// Takes a round back whose messages are all complete.
  void close(Round& round) noexcept {
    while (round.first != nullptr) {
      Request& request = *std::exchange(round.first, round.first->next);
      request.round = nullptr;
      request.next = std::exchange(free_requests_, &request);
    }
    rounds_.close(round);
  }

  void complete(Request& request) noexcept {
    request.state = Request::State::complete;
    --request.round->incomplete;
    --incomplete_;
    ++completed_;
  }

  /// Messages completed since the table was made.
  std::uint64_t completed_count() const noexcept { return completed_; }
  std::size_t incomplete_count() const noexcept { return incomplete_; }
  /// True if a message under way uses some of `memory`.
  bool uses(std::span<const std::byte> memory) const noexcept {
    return std::any_of(requests_.begin(), requests_.end(), [&](const Request& request) {
      return request.round != nullptr && request.state == Request::State::under_way &&
             overlap(memory, {request.message.data, request.message.bytes});
    });
  }
  /// Ranks whose messages a round waits for, in no order; none for a ticket that is spent.
  std::vector<int> silent(Ticket ticket) const {
    std::vector<int> ranks;
    const Round* const round = find(ticket);
    if (round == nullptr) return ranks;
    for (const Request* request = round->first; request != nullptr; request = request->next)
      if (request->is_awaited()) ranks.push_back(request->message.peer);
    return ranks;
  }

 protected:
  std::deque<Request>& requests() noexcept { return requests_; }

 private:
  RoundPool<Round> rounds_;
  std::deque<Request> requests_;
  Request* free_requests_ = nullptr;
  std::uint64_t completed_ = 0;
  std::size_t incomplete_ = 0;
};

}  // namespace tightwire
