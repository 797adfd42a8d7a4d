#include "round_table.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace tightwire::ucx {

Request& RoundTable::add(Round& round, const Message& message) {
  if (free_requests_ == nullptr) free_requests_ = &requests_.emplace_back();
  Request& request = *free_requests_;
  free_requests_ = request.next;
  request = {.table = this,
             .round = &round,
             .next = round.first,
             .ucx = nullptr,
             .kind = message.kind,
             .peer = message.peer,
             .tag = message.tag,
             .data = message.data,
             .bytes = message.bytes,
             .state = Request::State::under_way};
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

void RoundTable::complete(Request& request) noexcept {
  request.state = Request::State::complete;
  --request.round->incomplete;
  --incomplete_;
  ++completed_;
}

void RoundTable::fail(Request& request, std::size_t received_bytes, ucs_status_t status) noexcept {
  request.state = Request::State::failed;
  if (!failure_)
    failure_ = MessageFailure{.kind = request.kind,
                              .peer = request.peer,
                              .tag = request.tag,
                              .expected_bytes = request.bytes,
                              .received_bytes = received_bytes,
                              .status = status};
}

bool RoundTable::uses(std::span<const std::byte> memory) const noexcept {
  return std::any_of(requests_.begin(), requests_.end(), [&](const Request& request) {
    return request.round != nullptr && request.state == Request::State::under_way &&
           overlap(memory, {request.data, request.bytes});
  });
}

void RoundTable::cancel_receives(ucp_worker_h worker) noexcept {
  for (Request& request : requests_)
    if (request.ucx != nullptr && request.kind == Message::Kind::receive) ucp_request_cancel(worker, request.ucx);
}

std::string RoundTable::waiting_for(const Round& round) {
  std::vector<int> peers;
  for (const Request* request = round.first; request != nullptr; request = request->next)
    if (request->state != Request::State::complete) peers.push_back(request->peer);
  return rank_list(std::move(peers));
}

}  // namespace tightwire::ucx
