#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tightwire/cuda_transport.hpp>
#include <tightwire/transport.hpp>

#include "resources.hpp"

namespace tightwire::cuda::detail {

/// Messages of the host's through a transport between devices, for what ranks agree on before the first step, and for
/// frames that the host writes: through memory of the device and back, which is kept, as to free it waits for the whole
/// device. Tags say nothing: ranks post rounds alike.
class HostMessages final : public tightwire::Transport {
 public:
  /// `timeout`: how long what was given up may take to end.
  HostMessages(cuda::Transport& device, std::chrono::milliseconds timeout)
      : device_(device), timeout_(timeout), own_(std::in_place, device.rank()), stream_(own_->get()) {}
  /// On a stream that outlives it, behind the rounds that are on it.
  HostMessages(cuda::Transport& device, std::chrono::milliseconds timeout, cudaStream_t stream)
      : device_(device), timeout_(timeout), stream_(stream) {}
  ~HostMessages() override { abandon(); }

  int rank() const noexcept override { return device_.rank(); }
  int size() const noexcept override { return device_.size(); }
  std::string describe() const override { return device_.describe() + ", of the host's memory"; }
  void detach(std::span<std::byte> /*memory*/) noexcept override { abandon(); }

  /// Of messages so far, both ways.
  std::uint64_t posted_bytes() const { return posted_bytes_; }
  /// Takes memory for a round of so many bytes, each message on 256 of them.
  void reserve(std::size_t bytes) {
    for (const Round& spent : spent_)
      if (spent.pinned.size() >= bytes) return;
    Round& round = spent_.emplace_back();
    round.bytes = bytes;
    take_new_memory(round);
  }

  Ticket post(std::span<const Message> round) override {
    Round filling;
    for (const Message& message : round) {
      filling.messages.push_back(message);
      filling.places.push_back(filling.bytes);
      filling.bytes += (message.bytes + 255) / 256 * 256;
      posted_bytes_ += message.bytes;
    }
    take_memory(filling);
    // Kept from here on, whatever is thrown: what was put on the stream uses its memory.
    const Round& mine = rounds_.emplace(++last_, std::move(filling)).first->second;
    std::vector<Message> messages;
    for (std::size_t i = 0; i < round.size(); ++i) {
      messages.push_back(round[i]);
      messages.back().data = mine.on_device.data() + mine.places[i];
      if (round[i].kind != Message::Kind::send) continue;
      std::memcpy(mine.pinned.data() + mine.places[i], round[i].data, round[i].bytes);
      copy(mine, i, cudaMemcpyHostToDevice);
    }
    device_.post(messages, stream_);
    for (std::size_t i = 0; i < round.size(); ++i)
      if (round[i].kind == Message::Kind::receive) copy(mine, i, cudaMemcpyDeviceToHost);
    return last_;
  }

  bool done(Ticket ticket) override {
    device_.check();
    const auto found = rounds_.find(ticket);
    if (found == rounds_.end()) return true;
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) return false;
    require(status, "cudaStreamQuery", rank());
    device_.check();  // a round that was given up since has ended, too, and brought nothing
    const Round& round = found->second;
    for (std::size_t i = 0; i < round.messages.size(); ++i)
      if (const Message& message = round.messages[i]; message.kind == Message::Kind::receive)
        std::memcpy(message.data, round.pinned.data() + round.places[i], message.bytes);
    spent_.push_back(std::move(rounds_.extract(found).mapped()));
    return true;
  }
  void idle(TimePoint /*until*/) override { std::this_thread::sleep_for(std::chrono::microseconds(50)); }
  void wake() noexcept override {}
  std::string waiting_for(Ticket ticket) const override {
    const auto found = rounds_.find(ticket);
    std::string peers;
    if (found != rounds_.end())
      for (const Message& message : found->second.messages)
        if (message.kind == Message::Kind::receive)
          peers += (peers.empty() ? "one of " : ", ") + std::to_string(message.peer);
    return peers;
  }
  void abort(std::string_view reason) noexcept override { device_.abort(reason); }
  /// All of it stays, for a device that does not come to an end.
  void leave_memory() noexcept {
    for (auto& [ticket, round] : rounds_) round.leave();
    for (Round& round : spent_) round.leave();
  }

 private:
  struct Round {
    std::vector<Message> messages;
    std::vector<std::size_t> places;
    std::size_t bytes = 0;
    Memory pinned, on_device;
    void leave() noexcept {
      pinned.leave();
      on_device.leave();
    }
  };
  /// Of a round that is over, if it had as much.
  void take_memory(Round& mine) {
    const auto enough = std::find_if(spent_.begin(), spent_.end(),
                                     [&](const Round& spent) { return spent.pinned.size() >= mine.bytes; });
    if (enough != spent_.end()) {
      mine.pinned = std::move(enough->pinned);
      mine.on_device = std::move(enough->on_device);
      spent_.erase(enough);
      return;
    }
    take_new_memory(mine);
  }
  /// Half as large again, so that it seldom happens twice.
  void take_new_memory(Round& mine) const {
    mine.pinned = Memory(mine.bytes + mine.bytes / 2, Memory::Kind::pinned, rank());
    mine.on_device = Memory(mine.bytes + mine.bytes / 2, Memory::Kind::device, rank());
  }
  void copy(const Round& round, std::size_t i, cudaMemcpyKind kind) const {
    std::byte* const host = round.pinned.data() + round.places[i];
    std::byte* const device = round.on_device.data() + round.places[i];
    const bool sends = kind == cudaMemcpyHostToDevice;
    require(cudaMemcpyAsync(sends ? device : host, sends ? host : device, round.messages[i].bytes, kind, stream_),
            "cudaMemcpyAsync", rank());
  }
  /// What is under way will not end by itself, and its memory is about to go away.
  void abandon() noexcept {
    if (rounds_.empty()) return;
    const BesideCaptures beside_captures;
    device_.abort("it stopped waiting for the other ranks");
    if (!ends_by(stream_, deadline_after(timeout_))) leave_memory();
    rounds_.clear();
  }

  cuda::Transport& device_;
  std::chrono::milliseconds timeout_;
  std::optional<OwnStream> own_;
  cudaStream_t stream_;
  std::map<Ticket, Round> rounds_;
  std::vector<Round> spent_;
  Ticket last_ = 0;
  std::uint64_t posted_bytes_ = 0;
};

}  // namespace tightwire::cuda::detail
