#include "staged_transport.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
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

/// Of the messages of one channel, which nobody else on the host's transport has. Collective.
std::uint64_t tag_for_all(tightwire::Transport& host, std::chrono::milliseconds timeout) {
  return message_tag(agree_on_channels(host, host.next_channel(), 1, timeout).first_channel, FrameKind::contribution, 0,
                     0);
}

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
  turns_->free.resize(kRounds);
  for (Round& round : turns_->free) round.messages.reserve(2 * static_cast<std::size_t>(host_->size()));
}

StagedTransport::~StagedTransport() {
  bool busy = false;
  {
    const std::lock_guard lock(turns_->mutex);
    turns_->stopping = true;
    busy = !turns_->pending.empty();
  }
  if (busy) abort("it ended with a round under way");
  turns_->changed.notify_all();
  if (worker_.joinable()) worker_.join();
  for (const Memory& memory : staging_) host_->detach({memory.data(), memory.size()});
  const BesideCaptures beside_captures;
  if (left_ || !streams_end()) {
    done_.leave();
    for (Memory& memory : staging_) memory.leave();
    static_cast<void>(turns_.release());  // where a stream that comes there later tells of it
  }
  done_ = Memory();  // freed beside captures
  staging_.clear();
}

/// Copies use memory that goes away with us. What was given up has had its time from then on.
bool StagedTransport::streams_end() const noexcept {
  const TimePoint until = deadline_after(settings_.timeout, gave_up_at_.value_or(Clock::now()));
  try {
    while (!last_.reached(rank())) {
      if (Clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  } catch (const Error&) {  // the device has come to an end
  }
  return true;
}

Error StagedTransport::as_error(const std::exception& error) const {
  const auto* const known = dynamic_cast<const Error*>(&error);
  return known != nullptr ? *known : Error(Errc::internal, where() + error.what());
}
void StagedTransport::require_open() const {
  const std::lock_guard lock(turns_->mutex);
  if (failure_) throw Error(*failure_);
}

/// The first error stays. Streams that wait are let go, by the number of the last round there is.
void StagedTransport::close(const Error& error) noexcept {
  {
    const std::lock_guard lock(turns_->mutex);
    if (failure_) return;
    failure_ = error;
    gave_up_at_ = Clock::now();
    write_number(done_, last_number_);
  }
  turns_->changed.notify_all();
  host_->abort(error.what());
  host_->wake();
}
void StagedTransport::abort(std::string_view reason) noexcept {
  close(Error(Errc::peer_lost, where() + "(this rank) gave up: " + std::string(reason)));
}
void StagedTransport::check() { require_open(); }

std::shared_ptr<Transport> StagedTransport::open_channel(std::chrono::milliseconds timeout) {
  require_open();
  const BesideCaptures beside_captures;
  const OfDevice current(device(), rank());
  return std::make_shared<StagedTransport>(host_, Settings{device(), timeout, tag_for_all(*host_, timeout)});
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
  const std::lock_guard lock(turns_->mutex);
  if (failure_) throw Error(*failure_);
  if (turns_->free.empty()) turns_->free.emplace_back();
  turns_->pending.splice(turns_->pending.end(), turns_->free, turns_->free.begin());
  Round& round = turns_->pending.back();
  round.turns = turns_.get();
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
  const BesideCaptures beside_captures;
  const OfDevice current(device(), rank());
  require_not_captured(stream, rank(), "a round", "rounds are counted");
  try {
    last_.wait(stream, rank());  // all rounds have one buffer
    Round& round = next_round(messages);
    copy(round, messages, Message::Kind::send, stream);
    require(cudaLaunchHostFunc(stream, &StagedTransport::reach, &round), "cudaLaunchHostFunc", rank());
    wait_for_value(stream, reinterpret_cast<const std::uint32_t*>(done_.data()), round.number, rank());
    copy(round, messages, Message::Kind::receive, stream);
    last_.record(stream, rank());
  } catch (const std::exception& error) {
    close(as_error(error));
    mark_end(stream);
    throw;
  }
}

/// Of what a round that failed has put on the stream.
void StagedTransport::mark_end(Stream stream) noexcept {
  try {
    last_.record(stream, rank());
  } catch (const std::exception&) {
    left_ = true;  // nobody knows when it ends
  }
}

/// Called by a stream, by a thread of CUDA's.
void StagedTransport::reach(void* argument) {
  Round& round = *static_cast<Round*>(argument);
  Turns& turns = *round.turns;
  const std::lock_guard lock(turns.mutex);
  round.reached = true;
  turns.changed.notify_all();
}

void StagedTransport::work() {
  Turns& turns = *turns_;
  std::unique_lock lock(turns.mutex);
  while (true) {
    turns.changed.wait(
        lock, [&] { return turns.stopping || (!failure_ && !turns.pending.empty() && turns.pending.front().reached); });
    if (turns.stopping) return;
    Round& round = turns.pending.front();
    lock.unlock();
    try {
      serve(round);
    } catch (const std::exception& error) {
      close(as_error(error));
    }
    lock.lock();
    if (failure_) continue;  // every number is out already
    write_number(done_, round.number);
    turns.free.splice(turns.free.end(), turns.pending, turns.pending.begin());
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
  const detail::BesideCaptures beside_captures;
  const int rank = host->rank();
  int device = 0;
  std::optional<Error> trouble;
  try {
    detail::require(cudaGetDevice(&device), "cudaGetDevice", rank);
    detail::require_waits_for_values(rank);
    require_any_thread(*host, "a staged transport");
  } catch (const Error& error) {
    trouble = error;
  }
  const auto all = tightwire::detail::exchange_greetings(*host, host->next_channel(), {trouble ? 1u : 0u, 0}, timeout,
                                                         "opening a staged transport (every rank must)");
  if (trouble) throw Error(Errc::unsupported, std::string("no staged transport: ") + trouble->what());
  for (std::size_t peer = 0; peer < all.size(); ++peer)
    if (all[peer].value != 0)
      throw Error(Errc::unsupported, "rank " + std::to_string(rank) + ": no staged transport: rank " +
                                         std::to_string(peer) + " cannot have one; its own error says why");
  const std::uint64_t tag = detail::tag_for_all(*host, timeout);
  return std::make_shared<detail::StagedTransport>(std::move(host),
                                                   detail::StagedTransport::Settings{device, timeout, tag});
}

}  // namespace tightwire::cuda
