#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <tightwire/rendezvous.hpp>

#include "joined.hpp"
#include "socket.hpp"

namespace tightwire::rendezvous {

/// A Membership with peers: keeps the control connections of a joined job and one thread that sleeps on them.
class StandingMembership final : public Membership {
 public:
  /// Throws Error(no_memory) when no thread can be started.
  StandingMembership(const Rendezvous& rendezvous, Joined joined);
  ~StandingMembership() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::vector<std::string>& blobs() const noexcept override { return blobs_; }
  std::optional<Loss> loss() const override;
  int loss_descriptor() const noexcept override { return lost_event_.get(); }
  void give_up(std::string_view reason) noexcept override;
  void leave(std::chrono::milliseconds limit) noexcept override;

 private:
  bool in_forked_child() const noexcept { return generation_ != fork_generation(); }
  void start();
  void watch();
  void stop_watching();
  bool wait_for_events(std::vector<pollfd>& polled);
  void serve(Peer& peer);
  void on_frame(Peer& peer, const Frame& frame);
  void on_end(Peer& peer);
  void tell_all(FrameType type, std::string_view body, const Peer* except = nullptr);
  void say_give_up(std::string_view reason);
  void on_loss(int rank, const std::string& reason, const Peer* source);
  void check_all_left();
  void send_out(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit);
  bool has_output() const noexcept;

  const int rank_;
  const int size_;
  const unsigned generation_ = fork_generation();
  const std::vector<std::string> blobs_;
  Descriptor wake_event_;
  Descriptor lost_event_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  bool stopping_ = false;
  bool leaving_ = false;
  bool gave_up_ = false;
  bool all_left_ = false;
  bool barrier_broken_ = false;  ///< rank 0 left for good, so nobody counts any more

  std::optional<Loss> loss_;  ///< written once, before lost_
  std::atomic<bool> lost_{false};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace tightwire::rendezvous
