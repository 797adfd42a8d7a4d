#include "doorkeeper.hpp"
#include "joined.hpp"
#include "wire.hpp"

namespace tightwire::rendezvous {
namespace {

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
        doorkeeper_(request),
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
  void judge(Newcomer& newcomer);
  std::string mismatch(const Newcomer& newcomer) const;
  void announce_arrival(std::size_t rank);
  void serve(std::size_t rank);
  void on_frame(std::size_t rank, Frame frame);
  std::string attendance() const;
  void tell_everyone(const Error& error) noexcept;
  Joined hand_out();

  const JoinRequest& request_;
  std::size_t size_;
  Doorkeeper doorkeeper_;
  std::vector<Member> members_;
  std::vector<std::string> blobs_;
  std::vector<Channel> refused_;
  std::size_t missing_blobs_ = size_ - 1;
};

void Coordinator::step() {
  if (Clock::now() >= request_.deadline) {
    throw Error(Errc::timeout, attendance() + " (after " + std::to_string(request_.rendezvous.timeout.count()) +
                                   " ms; rank 0 listens at " + doorkeeper_.where() + ")");
  }
  TimePoint until = request_.deadline;
  std::vector<pollfd> polled;
  for (const Member& member : members_) {
    const int events = member.channel.has_output() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({member.channel.descriptor(), static_cast<short>(events), 0});  // -1, of absent ones, is skipped
  }
  doorkeeper_.prepare(polled, until);
  if (poll_until(polled.data(), polled.size(), until) < 0) return;
  for (std::size_t rank = 1; rank < size_; ++rank) {
    if (polled[rank].revents != 0) serve(rank);
  }
  for (Newcomer& newcomer : doorkeeper_.serve(polled.data() + size_)) judge(newcomer);
}

void Coordinator::judge(Newcomer& newcomer) {
  const Verdict verdict{Errc::ok, mismatch(newcomer)};
  if (!verdict.text.empty()) {
    const Verdict refusal{Errc::mismatch, verdict.text};
    newcomer.channel.send(FrameType::verdict, encode_verdict(doorkeeper_.key(), newcomer.transcript, refusal));
    refused_.push_back(std::move(newcomer.channel));
    throw Error(refusal.code, refusal.text);
  }
  newcomer.channel.send(FrameType::verdict, encode_verdict(doorkeeper_.key(), newcomer.transcript, verdict));
  newcomer.channel.set_limit(kBlobBytes);
  Member& member = members_[newcomer.hello.rank];
  member.channel = std::move(newcomer.channel);
  member.origin = std::move(newcomer.origin);
  member.present = true;
  announce_arrival(newcomer.hello.rank);
}

/// Why the newcomer cannot be part of this job; empty when it can.
std::string Coordinator::mismatch(const Newcomer& newcomer) const {
  const Introduction& hello = newcomer.hello;
  const std::string who = "rank " + std::to_string(hello.rank) + " (" + newcomer.origin + ")";
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
  const Member& member = members_[hello.rank];
  if (!member.present) return {};
  return "rank " + std::to_string(hello.rank) + " joined twice: from " + member.origin + " and from " + newcomer.origin;
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
    throw Error(verdict.code, "rank " + std::to_string(rank) + " gave up joining: " + verdict.text);
  }
  throw Error(Errc::corrupt, "rank " + std::to_string(rank) + " sent a frame of type " +
                                 std::to_string(static_cast<int>(frame.type)) + " out of turn");
}

std::string Coordinator::attendance() const {
  std::vector<bool> present(size_);
  std::vector<int> without_blob;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    present[rank] = members_[rank].present;
    if (present[rank] && !members_[rank].has_blob) without_blob.push_back(static_cast<int>(rank));
  }
  std::string text = describe_attendance(present);
  if (!without_blob.empty()) text += "; data has not come from " + list_ranks(without_blob);
  if (const std::string refused = doorkeeper_.describe_refused(); !refused.empty()) text += "; " + refused;
  return text;
}

void Coordinator::tell_everyone(const Error& error) noexcept {
  try {
    doorkeeper_.close();
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
  // Before the first rank can be done here and join anew at the same place.
  doorkeeper_.close();
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
