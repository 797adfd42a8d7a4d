#pragma once
#include <condition_variable>
#include <cstdint>
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
  /// Between two places of a stream. Those that are under way are the watcher's, the others of who posts.
  struct Round {
    cuda::detail::Event ready, done;
    bool began = false;
    TimePoint since;
    explicit Round(int rank) : ready(rank), done(rank) {}
  };
  class Use;
  /// Rounds that may be under way. Where CUDA's queues are full its calls wait, and no limit and no abort ends that.
  static constexpr std::uint64_t kRounds = 64;
  static constexpr auto kPause = std::chrono::microseconds(5000), kPauseOfWaiting = std::chrono::microseconds(50);

  std::string where() const { return "rank " + std::to_string(settings_.rank) + ": "; }
  Error as_error(const std::exception& error) const;
  void require_open() const;
  void require_all_present() const;
  std::function<void()> looks() const;
  void begin();
  Round& free_round(cuda::Stream stream);
  void put(std::span<const Message> round, cuda::Stream stream);
  void split(ncclComm_t& child, bool& settled, TimePoint until);
  void watch();
  void look();
  Error close(const Error& error) noexcept;
  void release() noexcept;

  const Api& api_;
  const Settings settings_;
  std::mutex calls_;          // one of them at a time; held while they wait, and so by nobody who watches or gives up
  mutable std::mutex mutex_;  // of what follows; no call of CUDA's is made with it, nor one of NCCL's that may wait
  ncclComm_t comm_;           // not aborted while it is used
  bool used_ = false;         // by a call of NCCL's
  std::optional<Error> failure_;
  std::vector<Round> rounds_;  // used in turn
  std::uint64_t posted_ = 0, ended_ = 0;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread watcher_;  // from the first round on
};

}  // namespace tightwire::nccl
