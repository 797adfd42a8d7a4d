#pragma once
#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/cuda_transport.hpp>
#include <tightwire/transport.hpp>

#include "resources.hpp"

namespace tightwire::cuda::detail {

/// Rounds between devices by a transport of the host's. A stream copies what is sent to pinned memory, tells a thread
/// of ours, and waits until a number in pinned memory says that the round is done; then it copies what came to the
/// device. The thread makes no call of CUDA's, since those may wait for a stream that waits for it.
class StagedTransport final : public Transport {
 public:
  struct Settings {
    int device;
    std::chrono::milliseconds timeout;  ///< of a round once its turn has come
    std::uint64_t tag;                  ///< of its messages
  };
  StagedTransport(std::shared_ptr<tightwire::Transport> host, Settings settings);
  /// What is under way is given up.
  ~StagedTransport() override;

  int rank() const noexcept override { return host_->rank(); }
  int size() const noexcept override { return host_->size(); }
  int device() const noexcept override { return settings_.device; }
  std::string describe() const override { return "staged through pinned host memory over " + host_->describe(); }
  std::shared_ptr<Transport> open_channel(std::chrono::milliseconds timeout) override;
  void post(std::span<const Message> round, Stream stream) override;
  void check() override;
  void abort(std::string_view reason) noexcept override;
  void leave_memory() noexcept override { left_ = true; }
  std::uint64_t staged_bytes() const noexcept override { return staged_bytes_; }

 private:
  struct Turns;
  /// Between the place where a stream has copied what is sent, and the one where it waits.
  struct Round {
    Turns* turns = nullptr;
    std::uint32_t number = 0;
    bool reached = false;           ///< by the stream
    std::vector<Message> messages;  ///< each in pinned memory, with a checksum behind it
  };

  /// Of rounds. Outlives us where a stream has yet to come to one. The mutex is never held over a call of CUDA's.
  struct Turns {
    std::mutex mutex;
    std::condition_variable changed;
    std::list<Round> free, pending;
    bool stopping = false;
  };

  static constexpr std::size_t kRounds = 64;  ///< for which there is room from the start

  std::string where() const { return "rank " + std::to_string(rank()) + ": "; }
  Error as_error(const std::exception& error) const;
  void require_open() const;
  bool streams_end() const noexcept;
  Round& next_round(std::span<const Message> messages);
  std::byte* room_for(std::span<const Message> messages);
  void copy(const Round& round, std::span<const Message> messages, Message::Kind kind, Stream stream);
  void mark_end(Stream stream) noexcept;
  static void reach(void* round);
  void work();
  void serve(Round& round);
  void close(const Error& error) noexcept;

  std::shared_ptr<tightwire::Transport> host_;
  Settings settings_;
  Memory done_;                  ///< the number of the last round that is done
  std::vector<Memory> staging_;  ///< the last one is in use; earlier ones were too small, and may be on their way
  Event last_;                   ///< the end of the last round, on its stream
  std::uint64_t staged_bytes_ = 0;
  bool left_ = false;  ///< memory, to the device
  std::unique_ptr<Turns> turns_ = std::make_unique<Turns>();

  // With the mutex of the turns.
  std::uint32_t last_number_ = 0;
  std::optional<Error> failure_;
  std::optional<TimePoint> gave_up_at_;
  std::thread worker_;  // from the first round on
};

}  // namespace tightwire::cuda::detail
