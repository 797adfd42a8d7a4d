#include <numeric>
#include <utility>

#include "asked.hpp"
#include "connections.hpp"
#include "inventory.hpp"
#include "log_capture.hpp"
#include "opening.hpp"
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

class Opening final : public PartOpening {
 public:
  Opening(const Rendezvous& rendezvous, const Options& options) : checksums_(options.checksums) {
    const LogCapture capture;
    try {
      require_available(options);
      connections_ = std::make_unique<Connections>(options, rendezvous.rank, rendezvous.size);
      self_ = connections_->self();
    } catch (const Error& error) {
      self_.failure = error.code();
      self_.failure_text = error.what();
    } catch (const std::exception& error) {
      self_.failure = Errc::no_memory;
      self_.failure_text = error.what();
    }
  }

  std::string blob() const override { return encode(self_); }

  std::unique_ptr<TransportPart> connect(Job job) override {
    const LogCapture capture;
    const std::vector<Peer> peers = decode_peers(job.blobs);
    auto transport = std::make_unique<UcxTransport>(std::move(job.membership), std::move(connections_), job.limit,
                                                    job.longest_sleep);
    transport->connect(peers, job.ranks, checksums_, job.until);
    return transport;
  }

 private:
  const Checksums checksums_;
  std::unique_ptr<Connections> connections_;
  Peer self_;
};

}  // namespace

void require_size(int ranks) {
  if (ranks > 1 << 16) throw Error(Errc::unsupported, "ucx: at most 65536 ranks, got " + std::to_string(ranks));
}

std::unique_ptr<PartOpening> prepare(const Rendezvous& rendezvous, const Options& options) {
  return std::make_unique<Opening>(rendezvous, options);
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Options& options) {
  require_size(rendezvous.size);
  const TimePoint until = deadline_after(rendezvous.timeout);
  const auto opening = prepare(rendezvous, options);
  auto membership = Membership::join(rendezvous, with_asked("ucx", opening->blob()));
  const std::vector<std::string> blobs = behind_asked(membership->blobs());
  std::vector<int> all(blobs.size());
  std::iota(all.begin(), all.end(), 0);
  return opening->connect({std::move(membership), blobs, all, rendezvous.timeout, until});
}

}  // namespace tightwire::ucx
