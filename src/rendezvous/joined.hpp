#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "channel.hpp"
#include "handshake.hpp"

namespace tightwire::rendezvous {

/// A process at the other end of a control connection.
struct Peer {
  int rank = 0;
  Channel channel;
  bool leaving = false;  ///< its end is no loss any more
};

/// What joining yields: rank 0 has a peer for every other rank, every other rank has rank 0.
struct Joined {
  std::vector<std::string> blobs;
  std::vector<Peer> peers;
};

/// Joins as rank 0.
Joined gather(const JoinRequest& request);
/// Joins as any other rank.
Joined report(const JoinRequest& request);

/// The ranks as text: "0 1 2".
std::string list_ranks(const std::vector<int>& ranks);
/// "rank 3 missing; present: 0 1 2", by who is there.
std::string describe_attendance(const std::vector<bool>& present);

/// How long that who is told why it cannot join may take to read it.
inline constexpr std::chrono::milliseconds kFarewellLimit{500};
/// Sends what is queued, says that nothing follows, and waits until the other ends have read it, not beyond `until`.
void close_gently(std::vector<Channel*> channels, TimePoint until) noexcept;

}  // namespace tightwire::rendezvous
