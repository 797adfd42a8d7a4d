#include "staged_transport.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <tightwire/agreement.hpp>
#include <tightwire/core_codecs.hpp>

#include "stream_wait.hpp"

namespace tightwire::cuda {
namespace detail {
namespace {

constexpr std::size_t kChecksum = sizeof(std::uint64_t);

std::size_t place_bytes(std::size_t bytes) { return (bytes + kChecksum + 255) / 256 * 256; }
std::span<std::byte> payload(const Message& staged) { return {staged.data, staged.bytes - kChecksum}; }

void write_number(const Memory& at, std::uint32_t number) {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(at.data())).store(number, std::memory_order_release);
}

}  // namespace

StagedTransport::StagedTransport(std::shared_ptr<tightwire::Transport> host, Settings settings)
    : host_(std::move(host)),
      settings_(settings),
      done_(sizeof(std::uint32_t), Memory::Kind::pinned, host_->rank()),
      last_(host_->rank()) {
  write_number(done_, 0);
  free_.resize(kRounds);
  for (Round& round : free_) round.messages.reserve(2 * static_cast<std::size_t>(host_->size()));
}

StagedTransport::~StagedTransport() {
  bool busy = false;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    busy = !pending_.empty();
  }
  if (busy) abort("it ended with a round under way");
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
  last_.synchronize();  // copies use memory that goes away now
  for (const Memory& memory : staging_) host_->detach({memory.data(), memory.size()});
}

void StagedTransport::require_open() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

/// The first error stays. Streams that wait are let go, by the number of the last round there is.
void StagedTransport::close(const Error& error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    write_number(done_, last_number_);
  }
  changed_.notify_all();
  host_->abort(error.what());
  host_->wake();
}
void StagedTransport::abort(std::string_view reason) noexcept {
  close(Error(Errc::peer_lost, where() + "(this rank) gave up: " + std::string(reason)));
}
void StagedTransport::check() { require_open(); }

std::shared_ptr<Transport> StagedTransport::open_channel(std::chrono::milliseconds timeout) {
  require_open();
  const OfDevice current(device(), rank());
  tightwire::detail::exchange_greetings(*host_, host_->next_channel(), {}, timeout,
                                        "opening a staged channel (every rank must)");
  const std::uint64_t tag = message_tag(host_->next_channel(), FrameKind::contribution, 0, 0, 0);
  return std::make_shared<StagedTransport>(host_, Settings{device(), timeout, tag});
}

/// One buffer for all rounds, as each comes after the one before on its stream; after a few steps it is large enough.
std::byte* StagedTransport::room_for(std::span<const Message> messages) {
  std::size_t bytes = 0;
  for (const Message& message : messages) bytes += place_bytes(message.bytes);
  if (staging_.empty() || staging_.back().size() < bytes) {
    const std::size_t twice = staging_.empty() ? 0 : 2 * staging_.back().size();
    staging_.emplace_back(std::max(bytes, twice), Memory::Kind::pinned, rank());
    host_->attach({staging_.back().data(), staging_.back().size()});
  }
  return staging_.back().data();
}

StagedTransport::Round& StagedTransport::next_round(std::span<const Message> messages) {
  std::byte* at = room_for(messages);
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
  if (free_.empty()) free_.emplace_back();
  pending_.splice(pending_.end(), free_, free_.begin());
  Round& round = pending_.back();
  round.owner = this;
  round.number = ++last_number_;
  round.reached = false;
  round.messages.clear();
  for (const Message& message : messages) {
    round.messages.push_back({message.kind, message.peer, settings_.tag, at, message.bytes + kChecksum});
    at += place_bytes(message.bytes);
    staged_bytes_ += message.bytes;
  }
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  return round;
}

void StagedTransport::copy(const Round& round, std::span<const Message> messages, Message::Kind kind, Stream stream) {
  const bool sends = kind == Message::Kind::send;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].kind != kind) continue;
    std::byte* const pinned = round.messages[i].data;
    require(cudaMemcpyAsync(sends ? pinned : messages[i].data, sends ? messages[i].data : pinned, messages[i].bytes,
                            sends ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync", rank());
  }
}

void StagedTransport::post(std::span<const Message> messages, Stream stream) {
  require_open();
  require_valid(messages, rank(), size());
  require_not_captured(stream, rank(), "a round", "rounds are counted");
  try {
    const OfDevice current(device(), rank());
    last_.wait(stream, rank());  // all rounds have one buffer
    Round& round = next_round(messages);
    copy(round, messages, Message::Kind::send, stream);
    require(cudaLaunchHostFunc(stream, &StagedTransport::reach, &round), "cudaLaunchHostFunc", rank());
    wait_for_value(stream, reinterpret_cast<const std::uint32_t*>(done_.data()), round.number, rank());
    copy(round, messages, Message::Kind::receive, stream);
    last_.record(stream, rank());
  } catch (const Error& error) {
    close(error);
    throw;
  }
}

/// Called by a stream, by a thread of CUDA's.
void StagedTransport::reach(void* argument) {
  Round& round = *static_cast<Round*>(argument);
  StagedTransport& self = *round.owner;
  const std::lock_guard lock(self.mutex_);
  round.reached = true;
  self.changed_.notify_all();
}

void StagedTransport::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (!failure_ && !pending_.empty() && pending_.front().reached); });
    if (stopping_) return;
    Round& round = pending_.front();
    lock.unlock();
    try {
      serve(round);
    } catch (const Error& error) {
      close(error);
    }
    lock.lock();
    if (failure_) continue;  // every number is out already
    write_number(done_, round.number);
    free_.splice(free_.end(), pending_, pending_.begin());
  }
}

/// Sends and receives what is in pinned memory.
void StagedTransport::serve(Round& round) {
  for (const Message& message : round.messages) {
    if (message.kind != Message::Kind::send) continue;
    const std::uint64_t checksum = host_->checksum(payload(message));
    std::memcpy(message.data + message.bytes - kChecksum, &checksum, kChecksum);
  }
  wait(*host_, host_->post(round.messages), settings_.timeout, "a round that is staged through pinned host memory");
  for (const Message& message : round.messages) {
    if (message.kind != Message::Kind::receive) continue;
    std::uint64_t checksum = 0;
    std::memcpy(&checksum, message.data + message.bytes - kChecksum, kChecksum);
    if (checksum != host_->checksum(payload(message)))
      throw Error(Errc::corrupt, where() + "a message from rank " + std::to_string(message.peer) +
                                     ": checksum does not match its bytes");
  }
}

}  // namespace detail

std::shared_ptr<Transport> staged(std::shared_ptr<tightwire::Transport> host, std::chrono::milliseconds timeout) {
  if (!host) throw Error(Errc::invalid_argument, "cuda::staged: the transport is null");
  const int rank = host->rank();
  int device = 0;
  std::optional<Error> trouble;
  try {
    detail::require(cudaGetDevice(&device), "cudaGetDevice", rank);
    detail::require_waits_for_values(rank);
  } catch (const Error& error) {
    trouble = error;
  }
  const auto all = tightwire::detail::exchange_greetings(*host, host->next_channel(), {trouble ? 1u : 0u, 0}, timeout,
                                                         "opening a staged transport (every rank must)");
  if (trouble) throw Error(Errc::unsupported, std::string("no staged transport: ") + trouble->what());
  for (std::size_t peer = 0; peer < all.size(); ++peer)
    if (all[peer].value != 0)
      throw Error(Errc::unsupported, "rank " + std::to_string(rank) + ": no staged transport: rank " +
                                         std::to_string(peer) + " has no device for it; its own error says why");
  const std::uint64_t tag = message_tag(host->next_channel(), FrameKind::contribution, 0, 0, 0);
  return std::make_shared<detail::StagedTransport>(std::move(host),
                                                   detail::StagedTransport::Settings{device, timeout, tag});
}

}  // namespace tightwire::cuda
