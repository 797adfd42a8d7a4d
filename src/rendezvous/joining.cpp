#include "joining.hpp"

#include <algorithm>

namespace tightwire::rendezvous {

std::optional<Frame> wait_for_frame(Channel& channel, TimePoint until) {
  while (true) {
    if (auto frame = channel.next()) return frame;
    if (channel.ended() || Clock::now() >= until) return std::nullopt;
    const int events = channel.has_output() ? POLLIN | POLLOUT : POLLIN;
    pollfd polled{channel.descriptor(), static_cast<short>(events), 0};
    if (poll_until(&polled, 1, until) <= 0) continue;
    channel.flush();
    channel.receive();
  }
}

std::optional<Channel> try_to_join(const SocketAddress& address, const Attempt& attempt, std::string& problem) {
  Descriptor socket = connect_to(address, attempt.answer_until, problem);
  if (!socket) return std::nullopt;
  configure_connection(socket, attempt.request.rendezvous.timeout);
  Channel channel(std::move(socket), kHandshakeBytes);
  Transcript transcript{encode(introduce(attempt.request)), {}};
  channel.send(FrameType::hello, transcript.hello);

  const auto welcome = wait_for_frame(channel, attempt.answer_until);
  if (!welcome || welcome->type != FrameType::welcome || !decode_introduction(welcome->body)) {
    problem = "whoever listens at " + address.text() + " does not answer as a rank 0 of tightwire";
    return std::nullopt;
  }
  transcript.welcome = welcome->body;
  channel.send(FrameType::proof, encode_proof(attempt.key, transcript, process_origin()));

  // From here on rank 0 may count us as present, so there is no going back before the very end.
  const auto answer = wait_for_frame(channel, attempt.request.deadline);
  const auto verdict = answer && answer->type == FrameType::verdict
                           ? check_verdict(attempt.key, transcript, answer->body)
                           : std::optional<Verdict>();
  if (!verdict) {
    problem = "rank 0 at " + address.text() + " does not have our job key, or ended";
    return std::nullopt;
  }
  if (verdict->code != Errc::ok) throw Error(verdict->code, verdict->text);
  channel.set_limit(kBlobBytes + 4);
  return channel;
}

}  // namespace tightwire::rendezvous
