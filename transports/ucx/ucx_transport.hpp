#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/ucx.hpp>

#include "connections.hpp"
#include "fork_guard.hpp"
#include "log_capture.hpp"
#include "news.hpp"
#include "part.hpp"
#include "round_table.hpp"

namespace tightwire::ucx {

/// Tagged messages over one UCP worker behind one mutex. UCX moves the bytes; Membership tells who died. In a child of
/// fork() it is inert: connections are the parent's.
class UcxTransport final : public TransportPart {
 public:
  /// `limit` bounds the collective close in the destructor.
  UcxTransport(std::unique_ptr<Membership> membership, std::unique_ptr<Connections> connections,
               std::chrono::milliseconds limit, std::chrono::milliseconds longest_sleep = kLongestSleep);
  ~UcxTransport() override;

  /// Makes endpoints to `ranks` and exchanges a word with each over them, so that no later call connects lazily.
  /// Throws Error(timeout) listing who did not answer.
  void connect(const std::vector<Peer>& peers, const std::vector<int>& ranks, Checksums checksums, TimePoint until);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::string describe() const override { return description_; }
  void attach(std::span<std::byte> memory) override;
  void detach(std::span<std::byte> memory) noexcept override;
  Ticket post(std::span<const Message> round) override;
  bool settle(Ticket ticket) override;
  void idle(TimePoint until) override;
  bool look() override;
  void check_peers() override;
  void hear() override { news_.heard_by_this_thread() = news_.count(); }
  std::chrono::milliseconds going_to_sleep() override;
  void end_sleep() noexcept override;
  std::array<int, 3> descriptors() const noexcept override;
  bool uses(std::span<const std::byte> memory) const noexcept override;
  std::vector<int> silent(Ticket ticket) const override;
  void wake() noexcept override;
  std::string waiting_for(Ticket ticket) const override;
  void abort(std::string_view reason) noexcept override;
  std::uint64_t checksum(std::span<const std::byte> payload) const noexcept override;
  std::uint64_t node() const noexcept override { return node_; }
  bool shares_memory() const noexcept override { return shares_memory_; }

 private:
  struct Attachment {
    std::span<std::byte> memory;
    ucp_mem_h handle;
  };
  struct Suspicion {
    int peer;
    ucs_status_t status;
    TimePoint since;
  };

  /// Held in every call of UCX: one caller at a time, and UCX's messages kept.
  class Entry {
   public:
    explicit Entry(std::mutex& mutex) : lock(mutex) {}
    std::unique_lock<std::mutex> lock;

   private:
    LogCapture capture_;
  };

  /// For a call of the program.
  Entry enter() const {
    origin_.require_parent(rank_);
    return Entry(mutex_);
  }
  /// Sends a word to every peer and returns theirs, in order of rank, our own among them.
  std::vector<std::uint64_t> exchange(std::uint64_t word, TimePoint until);
  using Send = decltype(&ucp_tag_send_nbx);
  Ticket start(std::span<const Message> round, Send how);
  void send(Request& request, const Message& message, Send how);
  void receive(Request& request, const Message& message);
  static void on_sent(void* ucx, ucs_status_t status, void* request) noexcept;
  static void on_received(void* ucx, ucs_status_t status, const ucp_tag_recv_info_t* info, void* request) noexcept;
  static void settle_receive(Request& request, ucs_status_t status, std::size_t bytes) noexcept;

  void register_memory(std::span<std::byte> memory);
  void require_open() const;
  void progress();
  void require_healthy();
  void act_on_failure();
  [[noreturn]] void fail(Errc code, std::string_view message, bool is_known_to_peers);
  [[noreturn]] void fail_as_thrown();
  void shut() noexcept;
  void close_in_order();

  std::unique_ptr<Membership> membership_;
  std::unique_ptr<Connections> connections_;
  const std::chrono::milliseconds limit_;
  const std::chrono::milliseconds longest_sleep_;
  const int rank_;
  const int size_;
  const ForkGuard origin_;
  const Error out_of_memory_;  ///< made while there was some
  std::string description_ = "ucx";
  // Set before the first frame, never changed.
  const std::uint64_t node_ = number_of(this_host());
  bool shares_memory_ = false;
  bool checksums_ = true;
  News news_;

  mutable std::mutex mutex_;  // everything below, and every call of UCX
  RoundTable table_;
  std::vector<Attachment> attachments_;
  std::optional<Suspicion> suspicion_;
  std::optional<Error> failure_;
};

}  // namespace tightwire::ucx
