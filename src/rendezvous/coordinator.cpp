#include <cerrno>
#include <cstring>
#include <deque>

#include "address.hpp"
#include "address_file.hpp"
#include "joined.hpp"
#include "listening.hpp"
#include "proof.hpp"
#include "socket.hpp"
#include "wire.hpp"

namespace tightwire::rendezvous {
namespace {

/// A stranger may hold a connection this long, and so many of them at once; the eldest goes first.
constexpr std::chrono::seconds kHandshakeLimit{10};
constexpr std::size_t kMostPending = 128;
constexpr std::chrono::milliseconds kFarewellLimit{500};

/// A connection that has not proven the key.
struct Pending {
  Channel channel;
  TimePoint until;
  std::string from;
  Transcript transcript;
  bool settled = false;
};

struct Member {
  Channel channel;
  std::string origin;
  bool present = false;
  bool has_blob = false;
};

/// Rank 0 while the job gathers.
class Coordinator {
 public:
  explicit Coordinator(const JoinRequest& request)
      : request_(request),
        size_(static_cast<std::size_t>(request.rendezvous.size)),
        listening_(listen_for_ranks(request)),
        members_(size_),
        blobs_(size_) {
    members_[0].present = members_[0].has_blob = true;
    members_[0].origin = process_origin();
    blobs_[0] = request.blob;
  }

  Joined run() {
    try {
      while (missing_blobs_ > 0) step();
      return hand_out();
    } catch (const Error& error) {
      tell_everyone(error);
      throw;
    }
  }

 private:
  void step();
  void serve_listener();
  void serve(Pending& pending);
  void on_hello(Pending& pending, const Frame& frame);
  void on_proof(Pending& pending, const Frame& frame);
  void admit(Pending& pending, std::size_t rank, std::string origin);
  void refuse(Pending& pending, const Introduction& hello, const std::string& origin);
  std::string mismatch(const Introduction& hello, const std::string& origin) const;
  void drop(Pending& pending, const std::string& why);
  void serve(std::size_t rank);
  void on_frame(std::size_t rank, Frame frame);
  void announce_arrival(std::size_t rank);
  [[noreturn]] void throw_timeout() const;
  std::string attendance() const;
  void tell_everyone(const Error& error) noexcept;
  Joined hand_out();

  const JoinRequest& request_;
  std::size_t size_;
  Listening listening_;
  std::vector<Member> members_;
  std::vector<std::string> blobs_;
  std::deque<Pending> pending_;
  std::vector<Channel> refused_;
  std::size_t missing_blobs_ = size_ - 1;
  std::size_t dropped_ = 0;
  std::string last_dropped_;
};

void Coordinator::step() {
  if (Clock::now() >= request_.deadline) throw_timeout();
  TimePoint until = request_.deadline;
  std::vector<pollfd> polled{{listening_.socket.get(), POLLIN, 0}};
  for (const Pending& pending : pending_) {
    until = std::min(until, pending.until);
    polled.push_back({pending.channel.descriptor(), POLLIN, 0});
  }
  for (const Member& member : members_) {
    const int events = member.channel.has_output() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({member.channel.descriptor(), static_cast<short>(events), 0});  // -1, of absent ones, is skipped
  }
  poll_until(polled.data(), polled.size(), until);
  const std::size_t pending_count = pending_.size();
  for (std::size_t rank = 1; rank < size_; ++rank) {
    if (polled[1 + pending_count + rank].revents != 0) serve(rank);
  }
  for (std::size_t i = 0; i < pending_count; ++i) {
    if (polled[1 + i].revents != 0) serve(pending_[i]);
    if (!pending_[i].settled && Clock::now() >= pending_[i].until) drop(pending_[i], "said nothing for too long");
  }
  std::erase_if(pending_, [](const Pending& pending) { return pending.settled; });
  if (polled[0].revents != 0) serve_listener();
}

void Coordinator::serve_listener() {
  for (std::size_t taken = 0; taken < kMostPending; ++taken) {
    SocketAddress from;
    Descriptor socket = accept_connection(listening_.socket, from);
    if (!socket) {
      const bool exhausted = errno == EMFILE || errno == ENFILE;
      if (!exhausted) return;
      if (pending_.empty()) {
        throw Error(Errc::transport, "rank 0 cannot accept a connection: " + std::string(std::strerror(errno)) +
                                         " (errno " + std::to_string(errno) + "; see ulimit -n); " + attendance());
      }
      pending_.pop_front();
      continue;
    }
    configure_connection(socket, request_.rendezvous.timeout);
    if (pending_.size() >= kMostPending) pending_.pop_front();
    pending_.push_back({Channel(std::move(socket), kHandshakeBytes), Clock::now() + kHandshakeLimit, from.text(), {}});
  }
}

void Coordinator::serve(Pending& pending) {
  pending.channel.flush();
  pending.channel.receive();
  while (!pending.settled) {
    const auto frame = pending.channel.next();
    if (!frame) break;
    if (frame->type == FrameType::hello && pending.transcript.hello.empty()) {
      on_hello(pending, *frame);
    } else if (frame->type == FrameType::proof && !pending.transcript.hello.empty()) {
      on_proof(pending, *frame);
    } else {
      drop(pending, "does not speak our protocol");
    }
  }
  if (!pending.settled && pending.channel.ended()) {
    drop(pending, pending.transcript.hello.empty() ? "does not speak our protocol" : "went away");
  }
}

void Coordinator::on_hello(Pending& pending, const Frame& frame) {
  if (!decode_introduction(frame.body)) return drop(pending, "does not speak our protocol");
  pending.transcript = {frame.body, encode(introduce(request_))};
  pending.channel.send(FrameType::welcome, pending.transcript.welcome);
}

void Coordinator::on_proof(Pending& pending, const Frame& frame) {
  const auto origin = check_proof(listening_.key, pending.transcript, frame.body);
  if (!origin) return drop(pending, "does not have our job key");
  const auto hello = decode_introduction(pending.transcript.hello);
  if (const std::string text = mismatch(*hello, *origin); !text.empty()) {
    const Verdict verdict{Errc::mismatch, text};
    pending.channel.send(FrameType::verdict, encode_verdict(listening_.key, pending.transcript, verdict));
    refused_.push_back(std::move(pending.channel));
    pending.settled = true;
    throw Error(Errc::mismatch, text);
  }
  admit(pending, hello->rank, *origin);
}

std::string Coordinator::mismatch(const Introduction& hello, const std::string& origin) const {
  const std::string who = "rank " + std::to_string(hello.rank) + " (" + origin + ")";
  const std::string zero = "rank 0 (" + members_[0].origin + ")";
  if (hello.protocol != request_.protocol) {
    return who + " speaks rendezvous protocol " + std::to_string(hello.protocol) + ", " + zero + " speaks " +
           std::to_string(request_.protocol) + "; all ranks need the same version of tightwire";
  }
  if (hello.size != size_) {
    return who + " was started with world size " + std::to_string(hello.size) + ", " + zero + " with " +
           std::to_string(size_);
  }
  if (hello.rank >= size_) {
    return who + " is out of range: " + zero + " expects ranks 0 to " + std::to_string(size_ - 1);
  }
  if (members_[hello.rank].present) {
    return "rank " + std::to_string(hello.rank) + " joined twice: from " + members_[hello.rank].origin + " and from " +
           origin;
  }
  return {};
}

void Coordinator::admit(Pending& pending, std::size_t rank, std::string origin) {
  pending.channel.send(FrameType::verdict, encode_verdict(listening_.key, pending.transcript, {}));
  pending.channel.set_limit(kBlobBytes);
  Member& member = members_[rank];
  member.channel = std::move(pending.channel);
  member.origin = std::move(origin);
  member.present = true;
  pending.settled = true;
  announce_arrival(rank);
}

void Coordinator::announce_arrival(std::size_t arrived) {
  std::string newcomer;
  put_u32(newcomer, static_cast<std::uint32_t>(arrived));
  const SharedBytes news = encode_frame(FrameType::present, newcomer);
  std::string everyone;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (!members_[rank].present) continue;
    put_u32(everyone, static_cast<std::uint32_t>(rank));
    if (rank != 0 && rank != arrived) members_[rank].channel.send(news);
  }
  members_[arrived].channel.send(FrameType::present, everyone);
}

void Coordinator::drop(Pending& pending, const std::string& why) {
  pending.channel.close();
  pending.settled = true;
  ++dropped_;
  last_dropped_ = pending.from + " " + why;
}

void Coordinator::serve(std::size_t rank) {
  Channel& channel = members_[rank].channel;
  channel.flush();
  channel.receive();
  while (auto frame = channel.next()) on_frame(rank, std::move(*frame));
  if (channel.ended()) {
    const std::string reason = channel.end_reason();
    channel.close();
    throw Error(Errc::peer_lost, "rank " + std::to_string(rank) + " (" + members_[rank].origin +
                                     ") was lost while the job was joining: " + reason);
  }
}

void Coordinator::on_frame(std::size_t rank, Frame frame) {
  Member& member = members_[rank];
  if (frame.type == FrameType::blob && !member.has_blob) {
    member.has_blob = true;
    member.channel.set_limit(kControlBytes);
    blobs_[rank] = std::move(frame.body);
    --missing_blobs_;
    return;
  }
  if (frame.type == FrameType::failed) {
    const Verdict verdict = decode_failure(frame.body);
    std::string text = "rank " + std::to_string(rank) + " gave up joining: " + verdict.text;
    if (verdict.code == Errc::timeout) text = attendance() + " (rank " + std::to_string(rank) + "'s limit is over)";
    throw Error(verdict.code, text);
  }
  throw Error(Errc::corrupt, "rank " + std::to_string(rank) + " sent a frame of type " +
                                 std::to_string(static_cast<int>(frame.type)) + " out of turn");
}

std::string Coordinator::attendance() const {
  std::vector<bool> present(size_);
  std::string without_blob;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    present[rank] = members_[rank].present;
    if (present[rank] && !members_[rank].has_blob) without_blob += " " + std::to_string(rank);
  }
  std::string text = describe_attendance(present);
  if (!without_blob.empty()) text += "; data has not come from:" + without_blob;
  if (dropped_ > 0) text += "; " + std::to_string(dropped_) + " connections refused, the last: " + last_dropped_;
  return text;
}

void Coordinator::throw_timeout() const {
  throw Error(Errc::timeout, attendance() + " (after " + std::to_string(request_.rendezvous.timeout.count()) +
                                 " ms; rank 0 listens at " + listening_.where + ")");
}

void Coordinator::tell_everyone(const Error& error) noexcept {
  try {
    const SharedBytes failure = encode_frame(FrameType::failed, encode_failure(error));
    std::vector<Channel*> channels;
    for (Member& member : members_) {
      if (member.channel.descriptor() < 0) continue;
      member.channel.send(failure);
      channels.push_back(&member.channel);
    }
    for (Channel& channel : refused_) channels.push_back(&channel);
    close_gently(std::move(channels), Clock::now() + kFarewellLimit);
  } catch (const std::exception&) {
    // Out of memory: the others see our connection end instead.
  }
}

Joined Coordinator::hand_out() {
  // Nobody may find the old place any more once the first rank can begin to join anew.
  pending_.clear();
  listening_.socket.reset();
  listening_.file.remove();
  std::vector<SharedBytes> frames;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    std::string body;
    put_u32(body, static_cast<std::uint32_t>(rank));
    frames.push_back(encode_frame(FrameType::blob, body.append(blobs_[rank])));
  }
  Joined joined{std::move(blobs_), {}};
  for (std::size_t rank = 1; rank < size_; ++rank) {
    for (const SharedBytes& frame : frames) members_[rank].channel.send(frame);
    joined.peers.push_back({static_cast<int>(rank), std::move(members_[rank].channel)});
  }
  return joined;
}

}  // namespace

Joined gather(const JoinRequest& request) { return Coordinator(request).run(); }

}  // namespace tightwire::rendezvous
