#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include <tightwire/shm.hpp>

#include "asked.hpp"
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

/// The same on all of `ranks`: why they cannot share memory, as far as they know by what they told each other.
std::optional<Error> failure_of(const std::vector<Peer>& peers, const std::vector<int>& ranks) {
  const auto of = [&](int rank) -> const Peer& { return peers[static_cast<std::size_t>(rank)]; };
  for (const int rank : ranks)
    // One that others may not look into is apart from all, which matters not where it is alone.
    if (const std::string reason = apart(of(ranks[0]).place, of(rank).place); rank != ranks[0] && !reason.empty())
      return Error(Errc::unsupported, "shm: ranks " + std::to_string(ranks[0]) + " and " + std::to_string(rank) +
                                          " cannot share memory: " + reason);
  for (const int rank : ranks)
    if (of(rank).failure != Errc::ok)
      return Error(of(rank).failure, "rank " + std::to_string(rank) + ": " + of(rank).failure_text);
  return std::nullopt;
}

std::vector<int> nodes_of(const std::vector<Place>& places) {
  std::vector<int> node_of_rank;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    std::size_t first = 0;
    while (first < rank && !apart(places[first], places[rank]).empty()) ++first;
    node_of_rank.push_back(static_cast<int>(first));
  }
  return node_of_rank;
}

class Opening final : public PartOpening {
 public:
  explicit Opening(int ranks) {
    try {
      self_.place = this_place();
      self_.processors = allowed_processors();
      self_.process = getpid();
      self_.word = random_word();
      if (ranks > kMostRanks)
        throw Error(Errc::unsupported, "shm: at most " + std::to_string(kMostRanks) +
                                           " ranks can share memory, and there are " + std::to_string(ranks));
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

  std::unique_ptr<TransportPart> connect(Job job) override {
    const std::vector<Peer> peers = peers_in(job.blobs);
    failure_ = failure_of(peers, job.ranks);
    if (failure_) {
      membership_ = std::move(job.membership);
      return nullptr;
    }
    transport_ = std::make_unique<ShmTransport>(std::move(job.membership), std::move(own_), peers, job.ranks, job.limit,
                                                job.longest_sleep);
    failure_ = transport_->connect(peers, job.until);
    if (failure_) return nullptr;
    transport_->greet(job.until);
    return std::move(transport_);
  }

  std::optional<Error> failure() const override { return failure_; }
  /// Before what a rank shares is gone, all have looked at it.
  void leave(TimePoint until) {
    if (transport_)
      transport_->leave(until);
    else
      leave_in_order(*membership_, until);
    transport_.reset();
    membership_.reset();
  }

 private:
  Peer self_;
  std::unique_ptr<OwnSegment> own_;
  std::optional<Error> failure_;
  std::unique_ptr<Membership> membership_;   ///< where that was known before anything was opened
  std::unique_ptr<ShmTransport> transport_;  ///< where it was not
};

}  // namespace

std::unique_ptr<PartOpening> prepare(int ranks) { return std::make_unique<Opening>(ranks); }

std::vector<int> nodes(const Rendezvous& rendezvous, std::string_view asked) {
  const TimePoint until = deadline_after(rendezvous.timeout);
  const auto membership = Membership::join(rendezvous, with_asked(asked, encode(this_place())));
  std::vector<Place> places;
  for (const std::string& blob : behind_asked(membership->blobs()))
    places.push_back(decode_place(blob, static_cast<int>(places.size())));
  std::vector<int> node_of_rank = nodes_of(places);
  leave_in_order(*membership, until);
  return node_of_rank;
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise,
                                std::chrono::milliseconds longest_sleep, std::string_view asked) {
  const TimePoint until = deadline_after(rendezvous.timeout);
  auto opening = std::make_unique<Opening>(rendezvous.size);
  auto membership = Membership::join(rendezvous, with_asked(asked, opening->blob()));
  const std::vector<std::string> blobs = behind_asked(membership->blobs());
  std::vector<int> all(blobs.size());
  std::iota(all.begin(), all.end(), 0);
  if (auto transport = opening->connect({std::move(membership), blobs, all, rendezvous.timeout, until, longest_sleep}))
    return transport;
  opening->leave(until);
  const Error failure = *opening->failure();
  opening.reset();
  if (!otherwise) throw Error(failure);
  std::vector<Place> places;
  for (Peer& peer : peers_in(blobs)) places.push_back(std::move(peer.place));
  std::vector<int> nodes = nodes_of(places);
  // Who are of one place and cannot share memory all the same would find that out again.
  if (std::count(nodes.begin(), nodes.end(), 0) == rendezvous.size) nodes = all;
  return otherwise(failure.what(), nodes);
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise) {
  return open(rendezvous, otherwise, kLongestSleep);
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise, std::string_view asked) {
  return open(rendezvous, otherwise, kLongestSleep, asked);
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous) { return open(rendezvous, Otherwise{}); }

}  // namespace tightwire::shm
