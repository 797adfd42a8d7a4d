#pragma once
#include <string>

#include "address.hpp"
#include "channel.hpp"
#include "handshake.hpp"
#include "socket.hpp"

namespace tightwire::rendezvous {

/// One try to be accepted by who listens at an address.
struct Attempt {
  const JoinRequest& request;
  const std::string& key;
  TimePoint answer_until;  ///< when to doubt that tightwire listens there
};

/// The accepted connection. Empty with `problem` set when nobody is there or it is not our job. Throws Error with the
/// verdict when rank 0 of our job refuses us.
std::optional<Channel> try_to_join(const SocketAddress& address, const Attempt& attempt, std::string& problem);

/// The next frame; empty when the connection ended or the time is over.
std::optional<Frame> wait_for_frame(Channel& channel, TimePoint until);

}  // namespace tightwire::rendezvous
