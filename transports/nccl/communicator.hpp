#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <tightwire/cuda_transport.hpp>
#include <tightwire/rendezvous.hpp>

#include "api.hpp"
#include "call.hpp"
#include "resources.hpp"

namespace tightwire::nccl {

/// A communicator of NCCL's. Ours do not block; a thread watches over what is under way, and aborts it when NCCL tells
/// of an error, when a round takes too long, or when a rank of the job is lost.
class Communicator final : public cuda::Transport {
 public:
  struct Settings {
    int rank;
    int size;
    int device;
    std::chrono::milliseconds timeout;
    bool owned;  ///< else it is the caller's, and only split
    std::shared_ptr<Membership> membership;
    bool leaves = false;  ///< the membership when it ends, as the one that came with it
  };
  Communicator(const Api& api, ncclComm_t comm, Settings settings);
  ~Communicator() override;

  int rank() const noexcept override { return settings_.rank; }
  int size() const noexcept override { return settings_.size; }
  int device() const noexcept override { return settings_.device; }
  std::string describe() const override;
  std::shared_ptr<cuda::Transport> open_channel(std::chrono::milliseconds timeout) override;
  void post(std::span<const Message> round, cuda::Stream stream) override;
  void check() override;
  void abort(std::string_view reason) noexcept override;

 private:
  /// Between two places of a stream.
  struct Round {
    cuda::detail::Event ready, done;
    bool began = false;
    TimePoint since;
    explicit Round(int rank) : ready(rank), done(rank) {}
  };
  static constexpr std::size_t kRounds = 64;  ///< for which there is room from the start
  static constexpr auto kPause = std::chrono::milliseconds(5);

  std::string where() const { return "rank " + std::to_string(settings_.rank) + ": "; }
  void require_open() const;
  void require_all_present();
  void put(std::span<const Message> round, cuda::Stream stream);
  void watch();
  void look();
  Error close(const Error& error) noexcept;
  void release() noexcept;

  const Api& api_;
  ncclComm_t comm_;
  Settings settings_;
  mutable std::mutex mutex_;
  std::optional<Error> failure_;
  std::deque<Round> rounds_;  // used in turn
  std::size_t oldest_ = 0, pending_ = 0;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread watcher_;  // from the first round on
};

}  // namespace tightwire::nccl
