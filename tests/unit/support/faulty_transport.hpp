#pragma once
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/frame.hpp>

#include "wrapping_transport.hpp"

namespace tightwire::testing {

/// What is done to one message on its way out.
struct Fault {
  std::chrono::microseconds delay{0};
  bool drop = false;                                            ///< our side takes it for sent; it never arrives
  int copies = 1;                                               ///< 2: it arrives twice
  std::optional<std::size_t> resize = {};                       ///< bytes that are sent instead, zeros behind the end
  std::function<void(std::span<std::byte> frame)> change = {};  ///< of a copy; the sender's own bytes stay as they are
};

/// A network that fails as it is told to. Has a real checksum, so that damage can be noticed.
class FaultyTransport final : public WrappingTransport {
 public:
  /// Asked once for every message sent, in order; must not call the transport.
  using Script = std::function<Fault(const Message&)>;

  FaultyTransport(std::shared_ptr<Transport> inner, Script script)
      : WrappingTransport(std::move(inner)), script_(std::move(script)) {}
  ~FaultyTransport() override {
    for (std::vector<std::byte>& copy : copies_) inner().detach(copy);
  }

  /// FNV-1a over 64-bit words.
  std::uint64_t checksum(std::span<const std::byte> payload) const noexcept override { return checksum_of(payload); }
  static std::uint64_t checksum_of(std::span<const std::byte> payload) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325u;
    while (!payload.empty()) {
      std::uint64_t word = 0;
      const std::size_t bytes = std::min(payload.size(), sizeof word);
      std::memcpy(&word, payload.data(), bytes);
      hash = (hash ^ word) * 0x100000001b3u;
      payload = payload.subspan(bytes);
    }
    return hash;
  }
  /// Makes the checksum of a changed frame right again, so that only the field that was changed gives it away.
  static void reseal(std::span<std::byte> frame) {
    const std::uint64_t sum = checksum_of(frame.subspan(sizeof(std::uint64_t)));
    std::memcpy(frame.data(), &sum, sizeof sum);
  }

  Ticket post(std::span<const Message> round) override {
    const std::lock_guard lock(mutex_);
    const Ticket ticket = ++tickets_;
    Round& mine = rounds_[ticket];
    std::vector<Message> now, extra;
    for (const Message& message : round) {
      if (message.kind == Message::Kind::receive) {
        now.push_back(message);
        continue;
      }
      const Fault fault = script_ ? script_(message) : Fault{};
      if (fault.drop) continue;
      for (int copy = 0; copy < fault.copies; ++copy) {
        // The sender waits for the first copy; the others have memory of their own and are on no account.
        const Message sent = fault.change || fault.resize || copy > 0 ? changed(message, fault) : message;
        if (copy > 0) {
          extra.push_back(sent);
        } else if (fault.delay.count() > 0) {
          mine.held.push_back({sent, Clock::now() + fault.delay});
        } else {
          now.push_back(sent);
        }
      }
    }
    if (!now.empty()) mine.posted.push_back(inner().post(now));
    if (!extra.empty()) inner().post(extra);
    return ticket;
  }

  bool done(Ticket ticket) override {
    if (ticket == 0) return true;
    const std::lock_guard lock(mutex_);
    release();
    const auto at = rounds_.find(ticket);
    if (at == rounds_.end()) throw Error(Errc::invalid_argument, "this ticket was spent or never posted");
    Round& round = at->second;
    while (!round.posted.empty() && inner().done(round.posted.back())) round.posted.pop_back();
    if (!round.posted.empty() || !round.held.empty()) return false;
    rounds_.erase(at);
    return true;
  }

  void idle(TimePoint until) override {
    {
      const std::lock_guard lock(mutex_);
      release();
      for (const auto& [ticket, round] : rounds_)
        for (const Held& held : round.held) until = std::min(until, held.due);
    }
    WrappingTransport::idle(until);
  }

  std::string waiting_for(Ticket ticket) const override {
    const std::lock_guard lock(mutex_);
    const auto at = rounds_.find(ticket);
    if (at == rounds_.end()) return "";
    for (const Ticket posted : at->second.posted)
      if (std::string ranks = inner().waiting_for(posted); !ranks.empty()) return ranks;
    return "";
  }

  void detach(std::span<std::byte> memory) noexcept override {
    const std::lock_guard lock(mutex_);
    for (auto& [ticket, round] : rounds_)
      std::erase_if(round.held, [&](const Held& held) {
        return held.message.data >= memory.data() && held.message.data < memory.data() + memory.size();
      });
    WrappingTransport::detach(memory);
  }

 private:
  struct Held {
    Message message;
    TimePoint due;
  };
  struct Round {
    std::vector<Ticket> posted;
    std::vector<Held> held;
  };

  /// A copy of a message with the fault done to it.
  Message changed(const Message& message, const Fault& fault) {
    std::vector<std::byte>& copy = copies_.emplace_back(message.data, message.data + message.bytes);
    if (fault.change) fault.change(copy);
    if (fault.resize) copy.resize(*fault.resize);
    Message sent = message;
    sent.data = copy.data();
    sent.bytes = copy.size();
    return sent;
  }

  void release() {
    const TimePoint now = Clock::now();
    for (auto& [ticket, round] : rounds_)
      std::erase_if(round.held, [&, &to = round.posted](const Held& held) {
        if (held.due > now) return false;
        to.push_back(inner().post({&held.message, 1}));
        return true;
      });
  }

  Script script_;
  mutable std::mutex mutex_;
  std::map<Ticket, Round> rounds_;
  Ticket tickets_ = 0;
  std::deque<std::vector<std::byte>> copies_;
};

}  // namespace tightwire::testing
