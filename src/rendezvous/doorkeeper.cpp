#include "doorkeeper.hpp"

#include <algorithm>
#include <cerrno>

#include "errno_text.hpp"

namespace tightwire::rendezvous {
namespace {

/// A stranger may hold a connection this long, or this long when there is no room for more of them.
constexpr std::chrono::seconds kHandshakeLimit{10};
constexpr std::chrono::seconds kCrowdedLimit{1};
constexpr std::size_t kMostPending = 128;
/// How long to leave newcomers waiting when there is no room.
constexpr std::chrono::milliseconds kCrowdedPause{20};

}  // namespace

void Doorkeeper::prepare(std::vector<pollfd>& polled, TimePoint& until) const {
  const bool crowded = Clock::now() < accept_from_;
  if (crowded) until = std::min(until, accept_from_);
  polled.push_back({crowded ? -1 : listening_.socket.get(), POLLIN, 0});
  for (const Pending& pending : pending_) {
    until = std::min(until, pending.since + kHandshakeLimit);
    polled.push_back({pending.channel.descriptor(), POLLIN, 0});
  }
}

std::vector<Newcomer> Doorkeeper::serve(const pollfd* polled) {
  std::vector<Newcomer> newcomers;
  const pollfd* at = polled + 1;
  for (Pending& pending : pending_) {
    if ((at++)->revents != 0) serve(pending, newcomers);
    const bool overdue = Clock::now() >= pending.since + kHandshakeLimit;
    if (!pending.settled && overdue) refuse(pending, "did not prove our job key in time");
  }
  std::erase_if(pending_, [](const Pending& pending) { return pending.settled; });
  if (polled->revents != 0) accept_all();
  return newcomers;
}

void Doorkeeper::accept_all() {
  while (pending_.size() < kMostPending || make_room()) {
    SocketAddress from;
    Descriptor socket = accept_connection(listening_.socket, from);
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      if (pending_.empty()) {
        throw Error(Errc::transport, "rank 0 cannot accept a connection: " + errno_text(errno) + "; see ulimit -n");
      }
      if (!make_room()) return;
      continue;
    }
    if (!socket) return;
    configure_connection(socket, request_.rendezvous.timeout);
    pending_.push_back({Channel(std::move(socket), kHandshakeBytes), Clock::now(), from.text(), {}});
  }
}

/// Drops the eldest connection that has not proven the key, unless even that one is recent: then newcomers wait.
bool Doorkeeper::make_room() {
  if (Clock::now() < pending_.front().since + kCrowdedLimit) {
    accept_from_ = Clock::now() + kCrowdedPause;
    return false;
  }
  refuse(pending_.front(), "did not prove our job key in time");
  pending_.pop_front();
  return true;
}

void Doorkeeper::serve(Pending& pending, std::vector<Newcomer>& newcomers) {
  pending.channel.flush();
  pending.channel.receive();
  while (!pending.settled) {
    const auto frame = pending.channel.next();
    if (!frame) break;
    if (frame->type == FrameType::hello && pending.transcript.hello.empty()) {
      on_hello(pending, *frame);
    } else if (frame->type == FrameType::proof && !pending.transcript.hello.empty()) {
      on_proof(pending, *frame, newcomers);
    } else {
      refuse(pending, "does not speak our protocol");
    }
  }
  if (pending.settled || !pending.channel.ended()) return;
  if (pending.transcript.hello.empty()) return refuse(pending, "does not speak our protocol");
  pending.settled = true;  // a rank whose time was over, or that tries another address
}

void Doorkeeper::on_hello(Pending& pending, const Frame& frame) {
  if (!decode_introduction(frame.body)) return refuse(pending, "does not speak our protocol");
  pending.transcript = {frame.body, encode(introduce(request_))};
  pending.channel.send(FrameType::welcome, pending.transcript.welcome);
}

void Doorkeeper::on_proof(Pending& pending, const Frame& frame, std::vector<Newcomer>& newcomers) {
  const auto hello = decode_introduction(pending.transcript.hello);
  const auto origin = check_proof(key(), pending.transcript, frame.body);
  if (!origin) return refuse(pending, "claims to be rank " + std::to_string(hello->rank) + " with another job key");
  newcomers.push_back({std::move(pending.channel), std::move(pending.transcript), *hello, *origin});
  pending.settled = true;
}

void Doorkeeper::refuse(Pending& pending, const std::string& why) {
  pending.channel.close();
  pending.settled = true;
  ++refused_;
  last_refused_ = pending.from + " " + why;
}

std::string Doorkeeper::describe_refused() const {
  if (refused_ == 0) return {};
  return std::to_string(refused_) + (refused_ == 1 ? " connection" : " connections") +
         " refused, the last: " + last_refused_;
}

void Doorkeeper::close() {
  pending_.clear();
  listening_.socket.reset();
  listening_.file.remove();
}

}  // namespace tightwire::rendezvous
