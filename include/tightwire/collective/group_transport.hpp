#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tightwire/transport.hpp>

namespace tightwire {

/// Some ranks of a transport as a transport of their own, in which they are numbered from 0 on in the given order. One
/// thread at a time may post.
class GroupTransport final : public Transport {
 public:
  /// `all` must outlive it, and its rank be one of the members.
  GroupTransport(Transport& all, std::vector<int> members) : all_(all), members_(std::move(members)) {
    while (members_[me_] != all.rank()) ++me_;
    for (const int member : members_) has_wire_ = has_wire_ || (member != all.rank() && all.has_wire_to(member));
    round_.reserve(4 * members_.size());
  }

  int rank() const noexcept override { return static_cast<int>(me_); }
  int size() const noexcept override { return static_cast<int>(members_.size()); }
  std::string describe() const override { return all_.describe(); }
  void attach(std::span<std::byte> memory) override { all_.attach(memory); }
  void attach_pages(std::span<std::byte> pages) override { all_.attach_pages(pages); }
  void detach(std::span<std::byte> memory) noexcept override { all_.detach(memory); }
  Ticket post(std::span<const Message> round) override {
    round_.assign(round.begin(), round.end());
    for (Message& message : round_) message.peer = members_[static_cast<std::size_t>(message.peer)];
    return all_.post(round_);
  }
  bool done(Ticket ticket) override { return all_.done(ticket); }
  void release(Ticket ticket) override { all_.release(ticket); }
  void idle(TimePoint until) override { all_.idle(until); }
  void wake() noexcept override { all_.wake(); }
  std::string waiting_for(Ticket ticket) const override { return all_.waiting_for(ticket); }
  void abort(std::string_view reason) noexcept override { all_.abort(reason); }
  std::uint64_t checksum(std::span<const std::byte> payload) const noexcept override {
    return has_wire_ ? all_.checksum(payload) : 0;
  }
  bool has_wire_to(int peer) const noexcept override {
    return all_.has_wire_to(members_[static_cast<std::size_t>(peer)]);
  }
  std::uint64_t node() const noexcept override { return all_.node(); }
  bool shares_memory() const noexcept override { return all_.shares_memory() || !has_wire_; }

  int named(int rank) const noexcept override { return all_.named(members_[static_cast<std::size_t>(rank)]); }

 private:
  Transport& all_;
  std::vector<int> members_;
  std::size_t me_ = 0;
  bool has_wire_ = false;
  std::vector<Message> round_;
};

}  // namespace tightwire
