#pragma once
#include <sys/types.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/shm.hpp>
#include <tightwire/transport.hpp>

#include "attachments.hpp"
#include "bell.hpp"
#include "fork_guard.hpp"
#include "lane.hpp"
#include "memory_file.hpp"
#include "part.hpp"
#include "peer.hpp"
#include "process_watch.hpp"
#include "round_table.hpp"
#include "segment.hpp"

namespace tightwire::shm {

/// Our own memory file, of which peers see all.
struct OwnSegment {
  OwnSegment(int ranks, std::uint64_t word);
  /// Takes the memory of rings and streams, which is much where ranks are many: once it is known who shares it. Throws
  /// Error(no_memory).
  void reserve() const { file.reserve(0, layout.ring_at(ranks)); }

  int ranks;
  SegmentLayout layout;
  MemoryFile file;
  Mapping control;
  SegmentHead* head = nullptr;
  Bell bell;
};

/// Messages through memory that the ranks of one machine share, behind one mutex. Membership tells who died. In a child
/// of fork() it is inert: memory and peers are the parent's.
class ShmTransport final : public TransportPart {
 public:
  /// Among `ranks`, ours among them, ascending, each with a segment for so many; `peers` are those of all ranks of the
  /// job. `limit` bounds the collective close in the destructor.
  ShmTransport(std::unique_ptr<Membership> membership, std::unique_ptr<OwnSegment> own, const std::vector<Peer>& peers,
               std::vector<int> ranks, std::chrono::milliseconds limit,
               std::chrono::milliseconds longest_sleep = kLongestSleep);
  ~ShmTransport() override;

  /// Opens what the peers share. Collective: where a rank cannot, all are told which, whose, and why, and this is shut.
  /// Throws Error(timeout) listing who did not say, Error(peer_lost).
  std::optional<Error> connect(const std::vector<Peer>& peers, TimePoint until);
  /// Leaves the job together with the others, where `connect` failed. Throws Error(peer_lost).
  void leave(TimePoint until);
  /// Exchanges a word with every peer. Throws Error(timeout) listing who did not answer.
  void greet(TimePoint until);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::string describe() const override { return description_; }
  void attach_pages(std::span<std::byte> pages) override;
  void detach(std::span<std::byte> memory) noexcept override;
  Ticket post(std::span<const Message> round) override;
  bool settle(Ticket ticket) override;
  void release(Ticket ticket) override;
  void idle(TimePoint until) override;
  bool look() override;
  void check_peers() override;
  void hear() override;
  std::chrono::milliseconds going_to_sleep() override;
  void end_sleep() noexcept override;
  void give_way() noexcept override;
  std::array<int, 3> descriptors() const noexcept override;
  bool lends(Ticket ticket) const override;
  bool uses(std::span<const std::byte> memory) const noexcept override;
  std::vector<int> silent(Ticket ticket) const override;
  void wake() noexcept override;
  std::string waiting_for(Ticket ticket) const override;
  void abort(std::string_view reason) noexcept override;
  bool shares_memory() const noexcept override { return true; }
  std::uint64_t node() const noexcept override { return node_; }

 private:
  struct Neighbour {
    Bell bell;
    Mapping control;
    Mapping memory;
  };

  struct Death {
    int peer;
    TimePoint since;
  };

  void add_lane(int peer, const Peer& theirs);
  std::optional<Error> try_lanes(const std::vector<Peer>& peers);
  std::optional<Error> outcome_of(int peer, TimePoint until);
  /// For a call of the program.
  std::unique_lock<std::mutex> enter() const {
    origin_.require_parent(rank_);
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) [[unlikely]] {
      entering_.fetch_add(1);
      lock.lock();
      entering_.fetch_sub(1);
    }
    return lock;
  }
  Lane& lane(int peer) noexcept { return *lanes_[static_cast<std::size_t>(peer)]; }
  std::uint64_t& heard_by_caller();
  void announce() noexcept { news_.fetch_add(1); }
  void wake_sleepers() noexcept;
  void tell_sleepers() noexcept { own_->head->sleepers.store(sleepers_); }
  bool has_news() const noexcept;
  void require_open() const;
  void progress();
  void require_healthy();
  void look_for_deaths();
  [[noreturn]] void fail(Errc code, std::string_view message, bool is_known_to_peers);
  [[noreturn]] void fail_as_thrown();
  void close_in_order();

  std::unique_ptr<Membership> membership_;
  std::unique_ptr<OwnSegment> own_;
  const std::chrono::milliseconds limit_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds longest_sleep_;
  const ForkGuard origin_;
  const std::uint64_t node_;
  const std::vector<int> ranks_;  ///< that this transport reaches, and ours
  const int looks_;               ///< before the processor is given to others
  const std::string description_;
  const Error out_of_memory_;             ///< made while there was some
  std::atomic<std::uint64_t> news_{1};    ///< completions, wake, the end
  mutable std::atomic<int> entering_{0};  ///< threads that wait for the mutex, not for news

  mutable std::mutex mutex_;  // everything below, and all memory that is shared
  RoundTable table_;
  Attachments attachments_;
  std::vector<Neighbour> neighbours_;         ///< by rank; ours is empty, and of those that it does not reach
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< by rank; null of the same
  std::deque<std::pair<std::thread::id, std::uint64_t>> heard_;  ///< news that each waiting thread knows of
  ProcessWatch processes_;                                       ///< of the peers
  TimePoint asked_processes_{};
  std::optional<Death> death_;
  std::uint32_t sleepers_ = 0;  ///< threads of ours: what the head says anyone may have written
  std::optional<Error> failure_;
};

/// As `shm::open`. Tests sleep for longer, so that a missed bell is not made up for.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise,
                                std::chrono::milliseconds longest_sleep, std::string_view asked = "shm");

}  // namespace tightwire::shm
