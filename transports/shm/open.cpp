#include <unistd.h>

#include <optional>
#include <random>
#include <utility>

#include <tightwire/shm.hpp>

#include "peer.hpp"
#include "shm_transport.hpp"

namespace tightwire::shm {
namespace {

std::uint64_t random_word() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source() | 1;  // a file that was never written to begins with 0
}

std::vector<Peer> peers_in(const std::vector<std::string>& blobs) {
  std::vector<Peer> peers;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank)
    peers.push_back(decode_peer(blobs[rank], static_cast<int>(rank)));
  return peers;
}

/// The same on every rank: why the ranks cannot share memory, or empty.
std::string reason_against(const std::vector<Peer>& peers) {
  for (std::size_t rank = 1; rank < peers.size(); ++rank)
    if (const std::string reason = apart(peers[0].place, peers[rank].place); !reason.empty())
      return "ranks 0 and " + std::to_string(rank) + " cannot share memory: " + reason;
  return "";
}

/// Ours, and what of it the others are told; a failure, too.
std::unique_ptr<OwnSegment> own_segment(int ranks, Peer& self) {
  try {
    self.place = this_place();
    self.processors = allowed_processors();
    self.process = getpid();
    self.word = random_word();
    auto own = std::make_unique<OwnSegment>(ranks, self.word);
    self.descriptor = own->file.descriptor();
    self.file_bytes = own->file.bytes();
    return own;
  } catch (const Error& error) {
    self.failure = error.code();
    self.failure_text = error.what();
  } catch (const std::exception& error) {
    self.failure = Errc::no_memory;
    self.failure_text = error.what();
  }
  return nullptr;
}

/// The same on every rank: why the ranks cannot share memory, as far as they know by what they told each other.
std::optional<Error> failure_of(const std::vector<Peer>& peers) {
  if (const std::string reason = reason_against(peers); !reason.empty())
    return Error(Errc::unsupported, "shm: " + reason);
  for (std::size_t rank = 0; rank < peers.size(); ++rank)
    if (peers[rank].failure != Errc::ok)
      return Error(peers[rank].failure, "rank " + std::to_string(rank) + ": " + peers[rank].failure_text);
  return std::nullopt;
}

}  // namespace

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise,
                                std::chrono::milliseconds longest_sleep) {
  if (rendezvous.size > kMostRanks)
    throw Error(Errc::unsupported,
                "shm: at most " + std::to_string(kMostRanks) + " ranks, got " + std::to_string(rendezvous.size));
  const TimePoint until = deadline_after(rendezvous.timeout);
  Peer self;
  std::unique_ptr<OwnSegment> own = own_segment(rendezvous.size, self);
  auto membership = Membership::join(rendezvous, encode(self));
  const std::vector<Peer> peers = peers_in(membership->blobs());
  std::optional<Error> failure = failure_of(peers);
  if (failure) {
    leave_in_order(*membership, until);
    membership.reset();
    own.reset();
  } else {
    auto transport =
        std::make_unique<ShmTransport>(std::move(membership), std::move(own), peers, rendezvous.timeout, longest_sleep);
    failure = transport->connect(peers, until);
    if (!failure) {
      transport->greet(until);
      return transport;
    }
    transport->leave(until);  // before what a rank shares is gone, all have looked at it
  }
  if (!otherwise) throw Error(*failure);
  return otherwise(failure->what());
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise) {
  return open(rendezvous, otherwise, kLongestSleep);
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous) { return open(rendezvous, {}); }

}  // namespace tightwire::shm
