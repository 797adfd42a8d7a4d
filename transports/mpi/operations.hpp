#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include <tightwire/round_pool.hpp>
#include <tightwire/transport.hpp>

#include "call.hpp"
#include "control.hpp"

namespace tightwire::mpi {

struct Round;

/// A message under way: some requests of MPI, and for a receive that was not announced yet, none.
struct Operation {
  Message message{};
  Round* round = nullptr;  ///< null for a word about ourselves
  Operation* next = nullptr;
  std::size_t requests = 0;  ///< of MPI, not complete
  bool settled = false;
  Control control;  ///< of a send: what announces it, kept while MPI reads it
};

/// A posted round, kept by RoundPool.
struct Round {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  std::size_t incomplete = 0;
  bool in_use = false;
  Operation* first = nullptr;
  Round* next_free = nullptr;
};

/// Rounds, their messages and the requests of MPI that these wait for. Records are pooled: it allocates only when more
/// are under way than ever before. Its owner serialises all calls.
class Operations {
 public:
  static constexpr std::size_t kPiece = std::size_t{1} << 30;  ///< bytes, which MPI counts in int

  Operations(MPI_Comm communicator, std::size_t piece);

  Round& open() { return rounds_.open(); }
  Operation& add(Round* round, const Message& message);
  static Ticket ticket(const Round& round) noexcept { return RoundPool<Round>::ticket(round); }
  Round* find(Ticket ticket) noexcept { return rounds_.find(ticket); }
  /// Takes a round back whose messages are all complete.
  void close(Round& round) noexcept;

  /// Starts MPI's sends or receives of some memory for an operation, in pieces that MPI can count.
  void send(Operation& operation, const std::byte* data, std::size_t bytes, int tag);
  void receive(Operation& operation, std::byte* data, std::size_t bytes, int tag);
  /// Ends an operation that needs no request (any more).
  void settle(Operation& operation) noexcept;

  /// Lets MPI work, and settles what is complete.
  void progress();
  std::uint64_t settled_count() const noexcept { return settled_; }
  /// Messages of rounds that are not complete.
  std::size_t incomplete_count() const noexcept { return incomplete_; }
  bool uses(std::span<const std::byte> memory) const noexcept;
  /// Takes back receives and waits a little for what MPI cannot take back.
  void give_up() noexcept;
  /// Words about ourselves that are still on their way.
  bool has_requests() const noexcept { return !requests_.empty(); }

 private:
  template <class Start>
  void in_pieces(Operation& operation, std::size_t bytes, const Start& start);

  MPI_Comm communicator_;
  std::size_t piece_;
  RoundPool<Round> rounds_;
  std::deque<Operation> operations_;
  Operation* free_operations_ = nullptr;
  std::vector<MPI_Request> requests_;
  std::vector<Operation*> owners_;  // of the requests
  std::vector<int> indices_;
  std::uint64_t settled_ = 0;
  std::size_t incomplete_ = 0;
};

}  // namespace tightwire::mpi
