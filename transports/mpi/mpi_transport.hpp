#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/mpi.hpp>
#include <tightwire/transport.hpp>

#include "call.hpp"
#include "control.hpp"
#include "operations.hpp"

namespace tightwire::mpi {

/// Messages over a communicator of our own, behind one mutex. Each is announced by a word under MPI's tag 0, since MPI
/// promises only 15 bits of tag; the bytes follow once the receiver knows where they belong.
class MpiTransport final : public Transport {
 public:
  /// Takes the communicator over, whose errors return. `limit` bounds the collective close. Messages travel in pieces
  /// of at most `piece` bytes.
  MpiTransport(MPI_Comm communicator, std::chrono::milliseconds limit, std::size_t piece = Operations::kPiece);
  ~MpiTransport() override;

  /// Exchanges a word with every rank. Throws Error(timeout) listing who did not answer.
  void greet(TimePoint until);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::string describe() const override;
  void detach(std::span<std::byte> memory) noexcept override;
  Ticket post(std::span<const Message> round) override;
  bool done(Ticket ticket) override;
  void idle(TimePoint until) override;
  void wake() noexcept override { events_.fetch_add(1, std::memory_order_relaxed); }
  std::string waiting_for(Ticket ticket) const override;
  void abort(std::string_view reason) noexcept override;
  std::uint64_t checksum(std::span<const std::byte> payload) const noexcept override;
  std::uint64_t node() const noexcept override { return node_; }
  bool any_thread() const noexcept override { return any_thread_; }

 private:
  /// A message that was announced before its receive was posted.
  struct Announcement {
    std::uint64_t tag;
    std::uint64_t bytes;
    std::uint64_t number;
  };
  struct Peer {
    std::vector<Operation*> waiting;  ///< receives that were not announced yet, oldest first
    std::vector<Announcement> early;
    std::uint64_t sent = 0;  ///< messages to it
    bool greeted = false;
    bool gone = false;  ///< it said goodbye
    std::uint64_t node = 0;
  };
  struct Loss {
    int rank;
    std::string reason;
  };
  /// Memory that MPI reads and writes on its own. Where MPI cannot be told to let go of it, it must stay.
  struct InUseByMpi {
    InUseByMpi(MPI_Comm communicator, std::size_t piece) : operations(communicator, piece) {}
    Operations operations;
    ControlWithReason heard{};
    ControlWithReason last_words{};
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  /// The bytes of the message with this number travel under this tag of MPI.
  int wire_tag(std::uint64_t number) const noexcept { return 1 + static_cast<int>(number % highest_tag_); }

  void require_thread(const char* call) const;
  void require_open();
  void require_present();
  void start_send(Operation& operation);
  void start_receive(Operation& operation);
  /// The bytes of an announced message find their place.
  void join(Operation& operation, const Announcement& announced);
  void listen();
  void progress();
  void hear(int from, const Control& control, std::string_view reason);
  void hear_message(int from, const Control& control);
  void tell_all(Control::Kind kind);
  void tell_reason(std::string_view reason) noexcept;
  /// Does what `abort` on a thread that may not call MPI left to this one.
  void tell_late() noexcept;
  [[noreturn]] void fail(Errc code, const std::string& message);
  void shut(Errc code, const std::string& message, bool tell);
  void close_in_order();
  void give_back() noexcept;

  MPI_Comm communicator_;
  const std::chrono::milliseconds limit_;
  int rank_ = 0;
  int size_ = 1;
  std::uint64_t highest_tag_ = 32767;
  bool any_thread_ = false;
  const std::thread::id owner_ = std::this_thread::get_id();
  const std::uint64_t node_;
  bool checksums_ = false;  // set before the first frame, never changed
  std::atomic<std::uint64_t> events_{0};

  mutable std::mutex mutex_;  // everything below, and every call of MPI
  std::unique_ptr<InUseByMpi> in_use_;
  Operations& operations_ = in_use_->operations;
  std::vector<Peer> peers_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::optional<std::string> untold_;  // why this rank gave up, on a thread that may not call MPI
  std::optional<Loss> loss_;
  std::optional<Error> failure_;
};

}  // namespace tightwire::mpi
