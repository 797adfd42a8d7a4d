#pragma once
#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "rounds.hpp"

namespace tightwire::ucx {

class RoundTable;
struct Round;

/// One message that UCX works on. UCX gets its address, so it stays where it is for the life of the table.
struct Request {
  RoundTable* table = nullptr;
  Round* round = nullptr;
  Request* next = nullptr;  ///< in its round, or in the pool
  void* ucx = nullptr;      ///< UCX's own request while it is under way
  Message message{};
  enum class State : std::uint8_t { under_way, complete, failed } state = State::under_way;

  bool is_awaited() const noexcept { return state != State::complete; }
};

/// A posted round, kept by RoundPool.
struct Round {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  std::uint32_t incomplete = 0;
  bool in_use = false;
  Request* first = nullptr;
  Round* next_free = nullptr;
};

/// Why a message failed, noted inside a callback of UCX and acted upon outside.
struct MessageFailure {
  int peer;
  std::uint64_t tag;
  std::size_t expected_bytes;
  std::size_t received_bytes;
  ucs_status_t status;
};

/// The rounds in flight, and what failed of them.
class RoundTable : public Rounds<Round, Request> {
 public:
  Request& add(Round& round, const Message& message) {
    Request& request = Rounds::add(round, message);
    request.table = this;
    return request;
  }
  void fail(Request& request, std::size_t received_bytes, ucs_status_t status) noexcept {
    request.state = Request::State::failed;
    if (!failure_)
      failure_ = MessageFailure{.peer = request.message.peer,
                                .tag = request.message.tag,
                                .expected_bytes = request.message.bytes,
                                .received_bytes = received_bytes,
                                .status = status};
  }
  /// The first message that failed.
  const std::optional<MessageFailure>& failure() const noexcept { return failure_; }
  /// Asks UCX to drop every receive that no message has met yet.
  void cancel_receives(ucp_worker_h worker) noexcept {
    for (Request& request : requests())
      if (request.ucx != nullptr && request.message.kind == Message::Kind::receive)
        ucp_request_cancel(worker, request.ucx);
  }

 private:
  std::optional<MessageFailure> failure_;
};

}  // namespace tightwire::ucx
