#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <tightwire/mixed.hpp>

#include "asked.hpp"
#include "mixed_transport.hpp"
#include "shm/opening.hpp"
#include "ucx/opening.hpp"

namespace tightwire::mixed {
namespace {

/// The membership of a job as one of the parts has it. The last one to end leaves the job for all: that with `leaves`.
class PartMembership final : public Membership {
 public:
  PartMembership(std::shared_ptr<Membership> job, bool leaves) : job_(std::move(job)), leaves_(leaves) {}

  int rank() const noexcept override { return job_->rank(); }
  int size() const noexcept override { return job_->size(); }
  const std::vector<std::string>& blobs() const noexcept override { return job_->blobs(); }
  std::optional<Loss> loss() const override { return job_->loss(); }
  int loss_descriptor() const noexcept override { return job_->loss_descriptor(); }
  void give_up(std::string_view reason) noexcept override { job_->give_up(reason); }
  void leave(std::chrono::milliseconds limit) noexcept override {
    if (leaves_) job_->leave(limit);
  }

 private:
  std::shared_ptr<Membership> job_;
  bool leaves_;
};

/// What a rank tells the others: nodes, then how each part is reached, each with its length in front.
std::string pack(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += std::to_string(field.size()) + ":" + field;
  return text;
}

constexpr std::size_t kFields = 4;
constexpr std::string_view kMagic = "tightwire-mixed-1";
constexpr std::string_view kAsked = "mixed";

std::vector<std::string> unpack(std::string_view text, int rank) {
  std::vector<std::string> fields;
  while (fields.size() < kFields) {
    const std::size_t end = std::min(text.find(':'), text.size());
    std::size_t length = 0;
    for (const char digit : text.substr(0, end))
      length = digit >= '0' && digit <= '9' && length <= text.size()
                   ? length * 10 + static_cast<std::size_t>(digit - '0')
                   : text.size() + 1;
    text.remove_prefix(std::min(end + 1, text.size()));
    if (end == 0 || length > text.size()) break;
    fields.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  if (fields.size() < kFields || !text.empty() || fields.front() != kMagic)
    throw Error(Errc::mismatch, "rank " + std::to_string(rank) +
                                    " joined with other means than shared memory inside nodes and UCX across, or with "
                                    "another version of tightwire");
  return fields;
}

struct Blobs {
  std::vector<std::string> inside, across;
};

/// Throws Error(mismatch) where ranks have other nodes.
Blobs blobs_in(const std::vector<std::string>& all) {
  Blobs blobs;
  std::string nodes;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<std::string> fields = unpack(all[rank], static_cast<int>(rank));
    if (rank == 0) nodes = fields[1];
    if (fields[1] != nodes)
      throw Error(Errc::mismatch, "ranks were given different nodes: rank 0 has " + nodes + ", rank " +
                                      std::to_string(rank) + " has " + fields[1]);
    blobs.inside.push_back(std::move(fields[2]));
    blobs.across.push_back(std::move(fields[3]));
  }
  return blobs;
}

/// What a rank of a node knows of its inside, and those of other nodes cannot.
struct Outcome {
  std::uint32_t code = 0;
  std::array<char, 1020> text{};
};

/// All ranks come to the same end: those of a node know how its inside is, and tell all others.
std::optional<Error> failure_of_any(std::optional<Error> own, TransportPart& across, const std::vector<int>& far,
                                    TimePoint until) {
  Outcome told;
  if (own) {
    told.code = static_cast<std::uint32_t>(own->code());
    std::strncpy(told.text.data(), own->what(), told.text.size() - 1);
  }
  std::vector<Outcome> heard(static_cast<std::size_t>(across.size()));
  std::vector<Message> round;
  constexpr std::uint64_t kTag = (std::uint64_t{1} << 48) - 1;
  for (const int peer : far) {
    if (peer == across.rank()) continue;
    const auto add = [&](Message::Kind kind, Outcome& outcome) {
      round.push_back({.kind = kind,
                       .peer = peer,
                       .tag = kTag,
                       .data = reinterpret_cast<std::byte*>(&outcome),
                       .bytes = sizeof(outcome)});
    };
    add(Message::Kind::receive, heard[static_cast<std::size_t>(peer)]);
    add(Message::Kind::send, told);
  }
  const Ticket ticket = across.post(round);
  while (!across.done(ticket)) {
    if (Clock::now() >= until) {
      const std::string text = "rank " + std::to_string(across.rank()) + " did not hear in time from ranks " +
                               across.waiting_for(ticket) + " whether their nodes share memory";
      across.abort(text);
      throw Error(Errc::timeout, text);
    }
    across.idle(until);
  }
  for (const Outcome& outcome : heard) {
    if (own || outcome.code == 0) continue;
    const auto end = std::find(outcome.text.begin(), outcome.text.end(), char{});
    const bool is_known = outcome.code <= static_cast<std::uint32_t>(Errc::internal);
    own.emplace(is_known ? static_cast<Errc>(outcome.code) : Errc::corrupt, std::string(outcome.text.begin(), end));
  }
  return own;
}

}  // namespace

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const std::vector<int>& node_of_rank,
                                const ucx::Options& options, const Otherwise& otherwise,
                                std::chrono::milliseconds longest_sleep) {
  ucx::require_size(rendezvous.size);
  const TimePoint until = deadline_after(rendezvous.timeout);
  const Nodes nodes = tightwire::nodes_of(
      {.node_of_rank = node_of_rank.empty() ? shm::nodes(rendezvous, kAsked) : node_of_rank}, rendezvous.size);
  const std::vector<int>& near = nodes.ranks[nodes.place_of(rendezvous.rank).first];
  std::vector<int> far;
  for (int rank = 0; rank < rendezvous.size; ++rank)
    if (std::find(near.begin(), near.end(), rank) == near.end()) far.push_back(rank);
  ucx::Options with_checksums = options;
  // A rank knows only of its own connections what they go through.
  if (nodes.nodes() > 1) with_checksums.checksums = ucx::Checksums::always;

  const auto inside = shm::prepare(static_cast<int>(near.size()));
  const auto across = ucx::prepare(rendezvous, with_checksums);
  Rendezvous rest = rendezvous;  // finding the nodes may have taken some of the limit
  rest.timeout = time_left(until);
  std::shared_ptr<Membership> job = Membership::join(
      rest, with_asked(kAsked, pack({std::string(kMagic), nodes.describe(), inside->blob(), across->blob()})));
  Blobs blobs = blobs_in(behind_asked(job->blobs()));
  const auto connect = [&](PartOpening& part, std::vector<std::string>& its, const std::vector<int>& ranks,
                           bool leaves) {
    return part.connect({std::make_unique<PartMembership>(job, leaves), std::move(its), ranks, rendezvous.timeout,
                         until, longest_sleep});
  };
  auto to_near = connect(*inside, blobs.inside, near, false);
  auto to_far = connect(*across, blobs.across, far, true);
  const std::optional<Error> failure = failure_of_any(inside->failure(), *to_far, far, until);
  if (!failure)
    return std::make_unique<MixedTransport>(rendezvous.rank, nodes, std::move(to_near), std::move(to_far),
                                            rendezvous.timeout);
  if (to_near) to_near->close_by(until);
  to_far->close_by(until);
  to_near.reset();
  to_far.reset();
  if (const auto loss = job->loss())
    throw Error(Errc::peer_lost, "rank " + std::to_string(loss->rank) + " lost: " + loss->reason);
  if (!otherwise) throw Error(*failure);
  return otherwise(failure->what());
}

std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const std::vector<int>& node_of_rank,
                                const ucx::Options& options, const Otherwise& otherwise) {
  return open(rendezvous, node_of_rank, options, otherwise, kLongestSleep);
}

}  // namespace tightwire::mixed
