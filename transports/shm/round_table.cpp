#include "round_table.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace tightwire::shm {

Round& RoundTable::open() {
  Round& round = rounds_.open();
  round.incomplete = round.lent = 0;
  round.is_spent = false;
  return round;
}

Request& RoundTable::add(Round& round, const Message& message) {
  if (free_requests_ == nullptr) free_requests_ = &requests_.emplace_back();
  Request& request = *free_requests_;
  free_requests_ = request.next;
  request = {.round = &round, .next = round.first, .message = message};
  round.first = &request;
  ++round.incomplete;
  ++incomplete_;
  return request;
}

void RoundTable::close(Round& round) noexcept {
  while (round.first != nullptr) {
    Request& request = *std::exchange(round.first, round.first->next);
    request.round = nullptr;
    request.next = std::exchange(free_requests_, &request);
  }
  rounds_.close(round);
}

void RoundTable::complete(Request& request, bool is_lent) noexcept {
  request.state = is_lent ? Request::State::lent : Request::State::complete;
  request.round->lent += is_lent ? 1 : 0;
  --request.round->incomplete;
  --incomplete_;
  ++completed_;
}

bool RoundTable::uses(std::span<const std::byte> memory) const noexcept {
  return std::any_of(requests_.begin(), requests_.end(), [&](const Request& request) {
    return request.round != nullptr && request.state == Request::State::under_way &&
           overlap(memory, {request.message.data, request.message.bytes});
  });
}

std::string RoundTable::waiting_for(const Round& round) {
  std::vector<int> peers;
  for (const Request* request = round.first; request != nullptr; request = request->next)
    if (request->state == Request::State::under_way) peers.push_back(request->message.peer);
  return rank_list(std::move(peers));
}

}  // namespace tightwire::shm
