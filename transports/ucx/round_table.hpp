#pragma once
#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>

#include <tightwire/round_pool.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::ucx {

class RoundTable;
struct Round;

/// One message that UCX works on. UCX gets its address, so it stays where it is for the life of the table.
struct Request {
  RoundTable* table = nullptr;
  Round* round = nullptr;
  Request* next = nullptr;  ///< in its round, or in the pool
  void* ucx = nullptr;      ///< UCX's own request while it is under way
  Message::Kind kind = Message::Kind::send;
  int peer = 0;
  std::uint64_t tag = 0;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  enum class State : std::uint8_t { under_way, complete, failed } state = State::under_way;
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
  Message::Kind kind;
  int peer;
  std::uint64_t tag;
  std::size_t expected_bytes;
  std::size_t received_bytes;
  ucs_status_t status;
};

/// The rounds in flight and their messages. Records are pooled: it allocates only when more are in flight than ever
/// before. Its owner serialises all calls.
class RoundTable {
 public:
  Round& open() { return rounds_.open(); }
  Request& add(Round& round, const Message& message);
  static Ticket ticket(const Round& round) noexcept { return RoundPool<Round>::ticket(round); }
  Round* find(Ticket ticket) noexcept { return rounds_.find(ticket); }
  const Round* find(Ticket ticket) const noexcept { return rounds_.find(ticket); }
  /// Takes a round back whose messages are all complete.
  void close(Round& round) noexcept;

  void complete(Request& request) noexcept;
  void fail(Request& request, std::size_t received_bytes, ucs_status_t status) noexcept;

  /// Messages completed since the table was made.
  std::uint64_t completed_count() const noexcept { return completed_; }
  std::size_t incomplete_count() const noexcept { return incomplete_; }
  /// True if a message under way uses some of `memory`.
  bool uses(std::span<const std::byte> memory) const noexcept;
  /// The first message that failed.
  const std::optional<MessageFailure>& failure() const noexcept { return failure_; }
  /// Asks UCX to drop every receive that no message has met yet.
  void cancel_receives(ucp_worker_h worker) noexcept;
  /// Ranks that messages of `round` wait for, ascending: "1, 3".
  static std::string waiting_for(const Round& round);

 private:
  RoundPool<Round> rounds_;
  std::deque<Request> requests_;
  Request* free_requests_ = nullptr;
  std::uint64_t completed_ = 0;
  std::size_t incomplete_ = 0;
  std::optional<MessageFailure> failure_;
};

}  // namespace tightwire::ucx
