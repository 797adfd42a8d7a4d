#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tightwire/hierarchy.hpp>
#include <tightwire/mixed.hpp>
#include <tightwire/round_pool.hpp>
#include <tightwire/transport.hpp>

#include "fork_guard.hpp"
#include "part.hpp"

namespace tightwire::mixed {

/// Two transports as one: to ranks of our node through one, to all others through the other. Ranks have the same
/// numbers in both, and one Membership tells both who died. An error of one ends the other, too. In a child of fork()
/// it is inert, as its parts are.
class MixedTransport final : public Transport {
 public:
  /// `limit` bounds the collective close of both together in the destructor.
  MixedTransport(int rank, Nodes nodes, std::unique_ptr<TransportPart> inside, std::unique_ptr<TransportPart> across,
                 std::chrono::milliseconds limit);
  ~MixedTransport() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(is_near_.size()); }
  std::string describe() const override;
  void attach(std::span<std::byte> memory) override;
  void attach_pages(std::span<std::byte> pages) override;
  void detach(std::span<std::byte> memory) noexcept override;
  Ticket post(std::span<const Message> round) override;
  bool done(Ticket ticket) override;
  void release(Ticket ticket) override;
  void idle(TimePoint until) override;
  void wake() noexcept override { across_->wake(); }
  std::string waiting_for(Ticket ticket) const override;
  void abort(std::string_view reason) noexcept override;
  std::uint64_t checksum(std::span<const std::byte> payload) const noexcept override {
    return shares_memory() ? 0 : across_->checksum(payload);
  }
  bool has_wire_to(int peer) const noexcept override { return !is_near(peer); }
  std::uint64_t node() const noexcept override { return node_; }
  bool shares_memory() const noexcept override { return nodes_.nodes() == 1; }

 private:
  struct Round {
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
    bool in_use = false;
    bool is_inside_done = false, is_across_done = false;
    bool is_spent = false;  ///< but what it was lent is not given back
    Ticket inside = 0, across = 0;
    Round* next_free = nullptr;
  };

  bool is_near(int peer) const noexcept { return is_near_[static_cast<std::size_t>(peer)]; }
  void require_open() const;
  /// Throws the error of a part for both.
  template <class Call>
  auto attempt(const Call& call);
  [[noreturn]] void fail(const Error& error);

  const int rank_;
  const Nodes nodes_;
  const std::uint64_t node_;
  const std::chrono::milliseconds limit_;
  const ForkGuard origin_;
  const Error out_of_memory_;  ///< made while there was some
  std::vector<bool> is_near_;

  mutable std::mutex mutex_;  // everything below, but what the parts do by themselves
  RoundPool<Round> rounds_;
  std::vector<Message> near_, far_;  ///< of the round that is posted
  std::optional<Error> failure_;
  // Ended in reverse order: that across takes part in the job's end, when nothing is left inside.
  std::unique_ptr<TransportPart> across_;
  std::unique_ptr<TransportPart> inside_;
};

/// As `mixed::open`. Tests sleep for longer, so that missed news is not made up for.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const std::vector<int>& node_of_rank,
                                const ucx::Options& options, const Otherwise& otherwise,
                                std::chrono::milliseconds longest_sleep);

}  // namespace tightwire::mixed
