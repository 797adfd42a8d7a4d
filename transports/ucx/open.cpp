#include <utility>

#include "connections.hpp"
#include "inventory.hpp"
#include "log_capture.hpp"
#include "ucx_transport.hpp"

namespace tightwire::ucx {
namespace {

std::vector<Peer> decode_peers(const std::vector<std::string>& blobs) {
  std::vector<Peer> peers;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    peers.push_back(decode_peer(blobs[rank], static_cast<int>(rank)));
    if (peers.back().failure != Errc::ok)
      throw Error(peers.back().failure, "rank " + std::to_string(rank) + ": " + peers.back().failure_text);
  }
  return peers;
}

}  // namespace

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Options& options) {
  if (rendezvous.size > 1 << 16)
    throw Error(Errc::unsupported, "ucx: at most 65536 ranks, got " + std::to_string(rendezvous.size));
  const TimePoint until = deadline_after(rendezvous.timeout);
  const LogCapture capture;
  std::unique_ptr<Connections> connections;
  Peer self;
  try {
    require_available(options);
    connections = std::make_unique<Connections>(options, rendezvous.rank, rendezvous.size);
    self = connections->self();
  } catch (const Error& error) {
    self.failure = error.code();
    self.failure_text = error.what();
  }
  auto membership = Membership::join(rendezvous, encode(self));
  const std::vector<Peer> peers = decode_peers(membership->blobs());
  auto transport = std::make_unique<UcxTransport>(std::move(membership), std::move(connections), rendezvous.timeout);
  transport->connect(peers, options.checksums, until);
  return transport;
}

}  // namespace tightwire::ucx
