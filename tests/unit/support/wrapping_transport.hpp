#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tightwire/transport.hpp>

namespace tightwire::testing {

/// Forwards everything to another transport: what the transports that watch or disturb one derive from.
class WrappingTransport : public Transport {
 public:
  explicit WrappingTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}

  int rank() const noexcept override { return inner_->rank(); }
  int size() const noexcept override { return inner_->size(); }
  std::string describe() const override { return inner_->describe(); }
  void attach(std::span<std::byte> memory) override { inner_->attach(memory); }
  void detach(std::span<std::byte> memory) noexcept override { inner_->detach(memory); }
  Ticket post(std::span<const Message> round) override { return inner_->post(round); }
  bool done(Ticket ticket) override { return inner_->done(ticket); }
  void release(Ticket ticket) override { inner_->release(ticket); }
  void idle(TimePoint until) override { inner_->idle(until); }
  void wake() noexcept override { inner_->wake(); }
  std::string waiting_for(Ticket ticket) const override { return inner_->waiting_for(ticket); }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }
  std::uint64_t checksum(std::span<const std::byte> payload) const noexcept override {
    return inner_->checksum(payload);
  }
  bool shares_memory() const noexcept override { return inner_->shares_memory(); }
  bool any_thread() const noexcept override { return inner_->any_thread(); }

 protected:
  Transport& inner() const { return *inner_; }

 private:
  std::shared_ptr<Transport> inner_;
};

/// Counts what is really handed to the transport.
class CountingTransport final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;

  Ticket post(std::span<const Message> round) override {
    for (const Message& message : round) {
      const bool sending = message.kind == Message::Kind::send;
      (sending ? sent_ : received_) += message.bytes;
      ++messages_;
    }
    return WrappingTransport::post(round);
  }

  std::uint64_t sent_bytes() const { return sent_; }
  std::uint64_t received_bytes() const { return received_; }
  std::uint64_t messages() const { return messages_; }

 private:
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint64_t> received_{0};
  std::atomic<std::uint64_t> messages_{0};
};

}  // namespace tightwire::testing
