#include <algorithm>
#include <thread>

#include "address.hpp"
#include "address_file.hpp"
#include "joined.hpp"
#include "joining.hpp"
#include "listening.hpp"
#include "wire.hpp"

namespace tightwire::rendezvous {
namespace {

constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLongestPause{200};
/// How long one address may leave us without an answer; doubled with every round through all of them.
constexpr std::chrono::milliseconds kFirstPatience{1000};

/// Any rank but 0 while the job gathers.
class Participant {
 public:
  explicit Participant(const JoinRequest& request)
      : request_(request),
        size_(static_cast<std::size_t>(request.rendezvous.size)),
        address_(parse_address(request.rendezvous.address)),
        present_(size_),
        blobs_(size_),
        has_blob_(size_) {}

  Joined run() {
    Channel channel = reach_rank_zero();
    channel.send(FrameType::blob, request_.blob);
    while (received_ < size_) {
      const auto frame = wait_for_frame(channel, request_.deadline);
      if (frame) {
        on_frame(*frame);
      } else if (channel.ended()) {
        throw Error(Errc::peer_lost, "rank 0 was lost while the job was joining: " + channel.end_reason());
      } else {
        give_up(channel);
      }
    }
    channel.set_limit(kControlBytes);
    Joined joined{std::move(blobs_), {}};
    joined.peers.push_back({0, std::move(channel)});
    return joined;
  }

 private:
  Channel reach_rank_zero();
  std::optional<Channel> try_every_place();
  std::vector<std::string> places();
  void on_frame(const Frame& frame);
  [[noreturn]] void give_up(Channel& channel);

  const JoinRequest& request_;
  std::size_t size_;
  Address address_;
  std::vector<bool> present_;
  std::vector<std::string> blobs_;
  std::vector<bool> has_blob_;
  std::size_t received_ = 0;
  std::string key_ = request_.rendezvous.key;
  std::chrono::milliseconds patience_ = kFirstPatience;
  std::string problem_;
};

Channel Participant::reach_rank_zero() {
  auto pause = kFirstPause;
  while (true) {
    if (auto channel = try_every_place()) return std::move(*channel);
    if (Clock::now() >= request_.deadline) break;
    std::this_thread::sleep_until(std::min(request_.deadline, Clock::now() + pause));
    pause = std::min(kLongestPause, pause * 3 / 2);
  }
  throw Error(Errc::timeout, "rank 0 missing: rank " + std::to_string(request_.rendezvous.rank) +
                                 " did not reach it at " + request_.rendezvous.address + " within " +
                                 std::to_string(request_.rendezvous.timeout.count()) +
                                 " ms; the last problem: " + problem_);
}

std::optional<Channel> Participant::try_every_place() {
  try {
    for (const std::string& place : places()) {
      const Address parsed = parse_address("tcp://" + place);
      for (const SocketAddress& target : resolve(parsed.host, parsed.port, request_.deadline)) {
        const TimePoint until = std::min(request_.deadline, Clock::now() + patience_);
        std::string problem;
        if (auto channel = try_to_join(target, {request_, key_, until}, problem)) return channel;
        // An attempt that the end of our time cut short says less than the one before.
        if (problem_.empty() || Clock::now() < request_.deadline) problem_ = problem;
      }
    }
  } catch (const Error& error) {
    // The host may become known yet; all else is rank 0's verdict.
    if (error.code() != Errc::transport) throw;
    problem_ = error.what();
  }
  patience_ = std::min(patience_ * 2, request_.rendezvous.timeout);
  return std::nullopt;
}

std::vector<std::string> Participant::places() {
  if (address_.kind == Address::Kind::tcp) {
    return {request_.rendezvous.address.substr(std::string_view("tcp://").size())};
  }
  const auto announcement = read_announcement(address_.path, problem_);
  if (!announcement) return {};
  key_ = combine_keys(request_.rendezvous.key, announcement->secret);
  return announcement->machine == machine_name() ? announcement->loopback : announcement->addresses;
}

void Participant::on_frame(const Frame& frame) {
  if (frame.type == FrameType::failed) {
    const Verdict verdict = decode_failure(frame.body);
    throw Error(verdict.code, verdict.text);
  }
  if (frame.type == FrameType::present && frame.body.size() % 4 == 0) {
    for (std::string_view rest = frame.body; !rest.empty(); rest.remove_prefix(4)) {
      if (get_u32(rest) < size_) present_[get_u32(rest)] = true;
    }
    return;
  }
  if (frame.type == FrameType::blob && frame.body.size() >= 4) {
    const std::size_t rank = get_u32(frame.body);
    if (rank < size_ && !has_blob_[rank]) {
      blobs_[rank] = frame.body.substr(4);
      has_blob_[rank] = true;
      ++received_;
      return;
    }
  }
  throw Error(Errc::corrupt, "rank 0 sent a frame of type " + std::to_string(static_cast<int>(frame.type)) + " and " +
                                 std::to_string(frame.body.size()) + " bytes out of turn");
}

void Participant::give_up(Channel& channel) {
  const std::string text =
      describe_attendance(present_) + " (after " + std::to_string(request_.rendezvous.timeout.count()) + " ms)";
  channel.send(FrameType::failed, encode_failure(Error(Errc::timeout, text)));
  close_gently({&channel}, Clock::now() + kFarewellLimit);
  throw Error(Errc::timeout, text);
}

}  // namespace

Joined report(const JoinRequest& request) { return Participant(request).run(); }

}  // namespace tightwire::rendezvous
