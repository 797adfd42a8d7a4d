#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/frame.hpp>
#include <tightwire/transport.hpp>

#include "host_messages.hpp"

namespace tightwire::cuda::detail {

/// Messages of a BlockReduction of a single chunk, through HostMessages. It posts receives before it sends what they
/// meet, which on a stream would wait for each other: so all contributions become one round, and all results another,
/// which goes out when the reduction first asks whether something of it is done. By then the reduction has posted all
/// of it.
class GroupedMessages final : public tightwire::Transport {
 public:
  explicit GroupedMessages(HostMessages& messages) : messages_(messages) {}

  int rank() const noexcept override { return messages_.rank(); }
  int size() const noexcept override { return messages_.size(); }
  std::string describe() const override { return messages_.describe(); }
  void detach(std::span<std::byte> memory) noexcept override { messages_.detach(memory); }

  Ticket post(std::span<const Message> round) override {
    Group& group = is_result(round.front()) ? results_ : contributions_;
    for (const Message& message : round) {
      group.messages.push_back(message);
      group.messages.back().tag = 0;
    }
    group.tickets.push_back(++last_);
    return last_;
  }
  bool done(Ticket ticket) override {
    if (ticket == 0) return true;
    send(contributions_);  // of a rank that gets none nobody asks for them
    if (std::find(results_.tickets.begin(), results_.tickets.end(), ticket) != results_.tickets.end()) send(results_);
    const auto found = sent_.find(ticket);
    if (found == sent_.end()) return true;
    if (!messages_.done(found->second)) return false;
    sent_.erase(found);
    return true;
  }
  void idle(TimePoint until) override { messages_.idle(until); }
  void wake() noexcept override { messages_.wake(); }
  std::string waiting_for(Ticket ticket) const override {
    const auto found = sent_.find(ticket);
    return found == sent_.end() ? std::string() : messages_.waiting_for(found->second);
  }
  void abort(std::string_view reason) noexcept override { messages_.abort(reason); }

 private:
  struct Group {
    std::vector<Message> messages;
    std::vector<Ticket> tickets;
  };
  static bool is_result(const Message& message) {
    return (message.tag >> 38 & 3u) == static_cast<std::uint64_t>(FrameKind::result);
  }
  void send(Group& group) {
    if (group.messages.empty()) return;
    const Ticket round = messages_.post(group.messages);
    for (const Ticket ticket : group.tickets) sent_.emplace(ticket, round);
    group.messages.clear();
    group.tickets.clear();
  }

  HostMessages& messages_;
  Group contributions_, results_;  ///< not sent yet
  std::map<Ticket, Ticket> sent_;  ///< to rounds
  Ticket last_ = 0;
};

}  // namespace tightwire::cuda::detail
