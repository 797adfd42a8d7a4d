#include <unistd.h>

#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include <tightwire/shm.hpp>

#include "opening.hpp"
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

std::vector<int> nodes_of(const std::vector<Peer>& peers) {
  std::vector<int> node_of_rank;
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    std::size_t first = 0;
    while (first < rank && !apart(peers[first].place, peers[rank].place).empty()) ++first;
    node_of_rank.push_back(static_cast<int>(first));
  }
  return node_of_rank;
}

/// The same on every rank that sees the same peers: who could not make what it would share.
std::optional<Error> failure_of(const std::vector<Peer>& peers) {
  for (std::size_t rank = 0; rank < peers.size(); ++rank)
    if (peers[rank].failure != Errc::ok)
      return Error(peers[rank].failure, "rank " + std::to_string(rank) + ": " + peers[rank].failure_text);
  return std::nullopt;
}

std::vector<int> up_to(std::size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

class Opening final : public PartOpening {
 public:
  explicit Opening(int ranks) {
    try {
      self_.place = this_place();
      self_.processors = allowed_processors();
      self_.process = getpid();
      self_.word = random_word();
      own_ = std::make_unique<OwnSegment>(ranks, self_.word);
      self_.descriptor = own_->file.descriptor();
      self_.bell = own_->bell.descriptor();
      self_.file_bytes = own_->file.bytes();
    } catch (const Error& error) {
      self_.failure = error.code();
      self_.failure_text = error.what();
    } catch (const std::exception& error) {
      self_.failure = Errc::no_memory;
      self_.failure_text = error.what();
    }
  }

  std::string blob() const override { return encode(self_); }
  std::unique_ptr<OwnSegment> take() { return std::move(own_); }

  /// Where shared memory fails inside one node, all ranks of the job are told.
  std::unique_ptr<TransportPart> connect(Job job) override {
    const std::vector<Peer> peers = peers_in(job.blobs);
    if (const std::optional<Error> failure = failure_of(peers)) throw Error(*failure);
    auto transport = std::make_unique<ShmTransport>(std::move(job.membership), take(), peers, job.ranks, job.limit);
    if (const std::optional<Error> failure = transport->connect(peers, job.until)) transport->end(*failure);
    transport->greet(job.until);
    return transport;
  }

 private:
  Peer self_;
  std::unique_ptr<OwnSegment> own_;
};

}  // namespace

std::unique_ptr<PartOpening> prepare(int ranks) { return std::make_unique<Opening>(ranks); }

std::vector<int> nodes(const Rendezvous& rendezvous) {
  Peer self;
  self.place = this_place();
  const auto membership = Membership::join(rendezvous, encode(self));
  std::vector<int> node_of_rank = nodes_of(peers_in(membership->blobs()));
  membership->leave(rendezvous.timeout);
  return node_of_rank;
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise,
                                std::chrono::milliseconds longest_sleep) {
  if (rendezvous.size > kMostRanks)
    throw Error(Errc::unsupported,
                "shm: at most " + std::to_string(kMostRanks) + " ranks, got " + std::to_string(rendezvous.size));
  const TimePoint until = deadline_after(rendezvous.timeout);
  Opening opening(rendezvous.size);
  auto membership = Membership::join(rendezvous, opening.blob());
  const std::vector<Peer> peers = peers_in(membership->blobs());
  const std::vector<int> all = up_to(peers.size());
  std::vector<int> nodes = all;  // where memory cannot be shared at all, it cannot inside nodes
  std::optional<Error> failure = failure_of(peers);
  if (!failure) {
    if (const std::string reason = reason_against(peers); !reason.empty()) {
      failure.emplace(Errc::unsupported, "shm: " + reason);
      nodes = nodes_of(peers);
    }
  }
  if (failure) {
    leave_in_order(*membership, until);
    membership.reset();
    opening.take().reset();
  } else {
    auto transport = std::make_unique<ShmTransport>(std::move(membership), opening.take(), peers, all,
                                                    rendezvous.timeout, longest_sleep);
    failure = transport->connect(peers, until);
    if (!failure) {
      transport->greet(until);
      return transport;
    }
    transport->leave(until);  // before what a rank shares is gone, all have looked at it
  }
  if (!otherwise) throw Error(*failure);
  return otherwise(failure->what(), nodes);
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise) {
  return open(rendezvous, otherwise, kLongestSleep);
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous) { return open(rendezvous, {}); }

}  // namespace tightwire::shm
