#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/sparse/announcement.hpp>
#include <tightwire/sparse/contribution.hpp>
#include <tightwire/sparse/frame_slot.hpp>
#include <tightwire/sparse/piece_sums.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire {

/// The all-reduce of the elements that each rank chooses of its gradients (TopK).
///
/// two_shot (after Ok-Topk, Li and Hoefler, arXiv:2201.07598; W ranks, range p of the elements belongs to rank p):
///   1. what we chose in range p goes to rank p
///   2. the owner sums in fp32, in rank order, and keeps the largest sums, as many as a rank chose there on average;
///   the
///      others go into the owner's residual, times the divisor, as if it had contributed them next time
///   3. what was kept goes to everyone
/// so that a rank sends about 2 k entries whatever W is, where a gathered union takes k W. Ranges follow the places of
/// the entries of past sums, which all ranks know.
///
/// one_shot: what we chose goes to everyone, and all compute the same sums.
///
class SparseReduction final : public Reduction {
 public:
  /// The plan must outlive it.
  SparseReduction(Transport& transport, const sparse::Plan& plan, FrameIdentity identity, float divisor,
                  const MomentumCorrection& momentum)
      : transport_(transport),
        plan_(plan),
        identity_(identity),
        me_(static_cast<std::size_t>(transport.rank())),
        ranks_(static_cast<std::size_t>(transport.size())),
        ranges_(plan.elements(), two_shot() ? ranks_ : 1),
        contribution_(plan, momentum),
        pieces_(two_shot() ? ranks_ : 1),
        sums_(plan, divisor),
        contributions_(ranks_),
        results_(ranks_),
        sends_(2 * ranks_) {
    cut_pieces();
    take_memory();
  }
  SparseReduction(const SparseReduction&) = delete;
  SparseReduction& operator=(const SparseReduction&) = delete;
  ~SparseReduction() override { transport_.detach(memory_.pages()); }

  void begin(const ReductionInput& input) override {
    input_ = input;
    stage_ = plan_.elements() == 0 ? Stage::finished : Stage::begun;
    statistics_ = {};
    nonfinite_ = 0;
    for (const sparse::PlannedSparse& p : plan_.parameters)
      statistics_.gradient_bytes += p.count * element_bytes(p.type);
  }

  bool finished() const override { return stage_ == Stage::finished; }
  const Statistics& statistics() const override { return statistics_; }
  std::size_t frame_bytes() const override { return memory_.size(); }

  bool advance() override {
    if (stage_ == Stage::finished) return false;
    bool progressed = false;
    if (stage_ == Stage::begun) {
      launch();
      stage_ = Stage::contributing;
      progressed = true;
    }
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      progressed = receive(contributions_[peer], FrameKind::contribution, peer) || progressed;
      progressed = receive(results_[peer], FrameKind::result, peer) || progressed;
    }
    if (stage_ == Stage::contributing && arrived(contributions_)) {
      two_shot() ? combine() : sum();
      stage_ = Stage::gathering;
      progressed = true;
    }
    for (std::size_t owner = 0; owner < ranks_; ++owner) {
      if (results_[owner].state != Incoming::State::arrived) continue;
      scatter(owner);
      progressed = true;
    }
    if (stage_ == Stage::gathering && idle(results_) && sent()) {
      if (two_shot() && ranges_.rebalance()) cut_pieces();
      stage_ = Stage::finished;
      progressed = true;
    }
    return progressed;
  }

  std::string waiting_for() const override {
    for (const auto* list : {&contributions_, &results_})
      for (const Incoming& incoming : *list)
        if (std::string ranks = transport_.waiting_for(incoming.ticket); !ranks.empty()) return ranks;
    for (const Ticket ticket : sends_)
      if (std::string ranks = transport_.waiting_for(ticket); !ranks.empty()) return ranks;
    return "none";
  }

  void end_step(bool keep) override {
    if (ranges_.end_step(keep)) cut_pieces();
  }
  void save(state::Records& records) const override {
    if (two_shot()) ranges_.save(records, identity_.bucket);
  }
  void restore(std::span<const state::Record> records, bool same_ranks) override {
    if (two_shot() && same_ranks && ranges_.restore(records, identity_.bucket)) cut_pieces();
  }

  // For the sums.

  /// Writes an element of a gradient, and returns what its buffer holds of it.
  float put(const sparse::Piece& piece, std::size_t index, float x) {
    const ElementType type = plan_.parameters[piece.parameter].type;
    std::byte* at = static_cast<std::byte*>(input_.data[piece.parameter]) + (piece.begin + index) * element_bytes(type);
    host::narrow(host::Level::baseline, type, &x, 1, at);
    if (two_shot()) ranges_.count(plan_.starts[piece.parameter] + piece.begin + index);
    return host::rounded(type, x);
  }
  void give_back(const sparse::Piece& piece, std::size_t index, float lost) const {
    if (const Residual& residual = input_.senders[piece.parameter]) residual.after[piece.begin + index] += lost;
  }

 private:
  enum class Stage { finished, begun, contributing, gathering };

  /// A frame from a peer, first its announcement.
  struct Incoming {
    enum class State { none, announcement, frame, arrived };
    State state = State::none;
    Ticket ticket = 0;
    std::size_t payload_bytes = 0;
  };

  static constexpr std::size_t kAnnouncement = sparse::kAnnouncement, kFrame = sparse::kFrame;

  bool two_shot() const { return plan_.algorithm == Algorithm::two_shot; }
  /// The part of the line that belongs to a rank, in one_shot all of it to everyone.
  std::span<const sparse::Piece> pieces(std::size_t owner) const { return pieces_[two_shot() ? owner : 0]; }
  bool owns(std::size_t rank) const { return !pieces(rank).empty(); }

  void cut_pieces() {
    for (std::size_t r = 0; r < pieces_.size(); ++r) plan_.pieces(ranges_.begin(r), ranges_.end(r), pieces_[r]);
  }

  /// Room for half as much again as is expected; frames that are larger find memory of their own.
  void take_memory() {
    std::size_t expected = sizeof(FrameHeader) + 1024;
    for (const sparse::PlannedSparse& p : plan_.parameters)
      expected += sparse::expected_bytes(p, (p.count + pieces_.size() - 1) / pieces_.size(), 0) * 3 / 2;
    const std::size_t stride = (expected + 63) / 64 * 64;
    const std::size_t outgoing = two_shot() ? ranks_ + 1 : 1, incoming = two_shot() ? 2 * ranks_ : ranks_;
    const std::size_t headers = (outgoing + incoming) * sizeof(FrameHeader);
    memory_ = Workspace(headers + (outgoing + incoming) * stride);
    slots_.reserve(outgoing + incoming);
    // Last of what may throw, as nobody would end it.
    transport_.attach_pages(memory_.pages());
    headers_ = memory_.data();
    std::byte* at = headers_ + headers;
    for (std::size_t i = 0; i < outgoing + incoming; ++i, at += stride) slots_.emplace_back(transport_, at, stride);
  }

  // Places of frames and announcements: contributions out, the result out, contributions in, results in.
  std::size_t out(FrameKind kind, std::size_t to) const {
    return !two_shot() ? 0 : kind == FrameKind::contribution ? to : ranks_;
  }
  std::size_t in(FrameKind kind, std::size_t from) const {
    return (two_shot() ? ranks_ + 1 : 1) + (kind == FrameKind::result ? ranks_ : 0) + from;
  }
  std::byte* announcement(std::size_t slot) const { return headers_ + slot * sizeof(FrameHeader); }

  Ticket post_receive(FrameKind kind, std::size_t peer, std::size_t chunk, std::byte* at, std::size_t bytes) {
    statistics_.received_bytes += bytes;
    const Message message{Message::Kind::receive, static_cast<int>(peer), identity_.tag(input_, kind, chunk), at,
                          bytes};
    return transport_.post({&message, 1});
  }

  void expect(Incoming& incoming, FrameKind kind, std::size_t peer) {
    incoming.state = Incoming::State::announcement;
    incoming.ticket = post_receive(kind, peer, kAnnouncement, announcement(in(kind, peer)), sizeof(FrameHeader));
  }

  /// Chooses, and sends to every owner what it must sum.
  void launch() {
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      if (peer == me_) continue;
      if (owns(me_)) expect(contributions_[peer], FrameKind::contribution, peer);
      if (two_shot() && owns(peer)) expect(results_[peer], FrameKind::result, peer);
    }
    {
      const detail::Work work(statistics_.encode_seconds);
      contribution_.choose(input_, static_cast<int>(me_));
    }
    std::uint64_t forgotten = contribution_.forgotten();
    // Each rank starts with its successor, so that not all of them write to rank 0 first.
    for (std::size_t i = 1; i <= ranks_; ++i) {
      const std::size_t owner = (me_ + i) % ranks_;
      if (!owns(owner)) continue;
      if (two_shot() || i == 1) {
        write_contribution(owner, forgotten);
        forgotten = 0;
      }
      if (owner != me_) send(FrameKind::contribution, owner);
    }
    const detail::Work work(statistics_.decode_seconds);
    for (std::size_t p = 0; p < plan_.parameters.size(); ++p)
      if (const std::size_t bytes = plan_.parameters[p].count * element_bytes(plan_.parameters[p].type); bytes != 0)
        std::memset(input_.data[p], 0, bytes);
  }

  void write_contribution(std::size_t owner, std::uint64_t nonfinite) {
    const detail::Work work(statistics_.encode_seconds);
    sparse::FrameSlot& frame = slots_[out(FrameKind::contribution, owner)];
    const std::size_t bytes = contribution_.write(pieces(owner), frame, nonfinite);
    seal(FrameKind::contribution, owner, bytes, nonfinite);
  }

  /// Completes a frame and its announcement.
  void seal(FrameKind kind, std::size_t to, std::size_t payload_bytes, std::uint64_t nonfinite) {
    const std::size_t slot = out(kind, to);
    FrameHeader header = identity_.header(input_, kind, me_, kFrame);
    header.payload_bytes = payload_bytes;
    header.nonfinite = nonfinite;
    frame::seal(transport_, slots_[slot].data(), header);
    sparse::announce(transport_, announcement(slot), identity_.header(input_, kind, me_, kAnnouncement), payload_bytes);
  }
  void send(FrameKind kind, std::size_t to) {
    const std::size_t slot = out(kind, to);
    FrameHeader header;
    std::memcpy(&header, slots_[slot].data(), sizeof header);
    const std::size_t first = kind == FrameKind::contribution ? 0 : ranks_;
    const std::size_t bytes = sizeof header + header.payload_bytes;
    const Message round[] = {
        {Message::Kind::send, static_cast<int>(to), identity_.tag(input_, kind, kAnnouncement), announcement(slot),
         sizeof header},
        {Message::Kind::send, static_cast<int>(to), identity_.tag(input_, kind, kFrame), slots_[slot].data(), bytes}};
    sends_[first + to] = transport_.post(round);
    statistics_.sent_bytes += sizeof header + bytes;
  }

  bool receive(Incoming& incoming, FrameKind kind, std::size_t peer) {
    using State = Incoming::State;
    if (incoming.state != State::announcement && incoming.state != State::frame) return false;
    if (!transport_.done(incoming.ticket)) return false;
    incoming.ticket = 0;
    const std::size_t slot = in(kind, peer);
    FrameHeader expected = identity_.header(input_, kind, peer, kAnnouncement);
    if (incoming.state == State::announcement) {
      const std::size_t bytes = sparse::announced_bytes(transport_, announcement(slot), expected, plan_,
                                                        pieces(kind == FrameKind::result ? peer : me_));
      slots_[slot].reserve(sizeof(FrameHeader) + bytes);
      incoming.payload_bytes = bytes;
      incoming.state = State::frame;
      incoming.ticket = post_receive(kind, peer, kFrame, slots_[slot].data(), sizeof(FrameHeader) + bytes);
      return true;
    }
    expected.chunk = kFrame;
    expected.payload_bytes = incoming.payload_bytes;
    const std::uint64_t met = frame::check(transport_, slots_[slot].data(), expected).nonfinite;
    (kind == FrameKind::result ? statistics_.nonfinite : nonfinite_) += met;
    incoming.state = State::arrived;
    return true;
  }

  bool arrived(const std::vector<Incoming>& list) const {
    return std::all_of(list.begin(), list.end(), [](const Incoming& incoming) {
      return incoming.state == Incoming::State::arrived || incoming.state == Incoming::State::none;
    });
  }
  static bool idle(const std::vector<Incoming>& list) {
    return std::all_of(list.begin(), list.end(),
                       [](const Incoming& incoming) { return incoming.state == Incoming::State::none; });
  }
  bool sent() {
    for (Ticket& ticket : sends_) {
      if (!transport_.done(ticket)) return false;
      ticket = 0;
    }
    return true;
  }

  /// Begins to read what every rank contributed to our part.
  void open_contributions() {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const std::size_t slot = rank == me_ ? out(FrameKind::contribution, me_) : in(FrameKind::contribution, rank);
      FrameHeader header;
      std::memcpy(&header, slots_[slot].data(), sizeof header);
      if (rank == me_) nonfinite_ += header.nonfinite;
      sums_.open(rank, {slots_[slot].payload(), header.payload_bytes});
      contributions_[rank].state = Incoming::State::none;
    }
  }
  /// two_shot, stages 2 and 3 for the range we own.
  void combine() {
    if (!owns(me_)) return;
    {
      const detail::Work work(statistics_.combine_seconds);
      open_contributions();
      sparse::FrameSlot& frame = slots_[out(FrameKind::result, me_)];
      const std::size_t at = sums_.combine(pieces(me_), frame, *this);
      nonfinite_ += sums_.take_nonfinite();
      statistics_.nonfinite += nonfinite_;
      seal(FrameKind::result, me_, at, std::exchange(nonfinite_, 0));
    }
    for (std::size_t i = 1; i < ranks_; ++i) send(FrameKind::result, (me_ + i) % ranks_);
  }

  void scatter(std::size_t owner) {
    const detail::Work work(statistics_.decode_seconds);
    sums_.scatter(owner, pieces(owner), {slots_[in(FrameKind::result, owner)].payload(), results_[owner].payload_bytes},
                  *this);
    results_[owner].state = Incoming::State::none;
  }

  /// one_shot: the sums of what everyone contributed, ours as its bytes say too.
  void sum() {
    const detail::Work work(statistics_.combine_seconds);
    open_contributions();
    sums_.sum(pieces(me_), *this);
    statistics_.nonfinite += std::exchange(nonfinite_, 0) + sums_.take_nonfinite();
  }

  Transport& transport_;
  const sparse::Plan& plan_;
  FrameIdentity identity_;
  std::size_t me_;
  std::size_t ranks_;
  sparse::Ranges ranges_;
  sparse::Contribution contribution_;
  std::vector<std::vector<sparse::Piece>> pieces_;  ///< by owner
  sparse::PieceSums<SparseReduction> sums_;
  std::vector<Incoming> contributions_, results_;
  std::vector<Ticket> sends_;  ///< [contribution | result][peer]
  Workspace memory_;
  std::byte* headers_ = nullptr;
  std::vector<sparse::FrameSlot> slots_;
  Stage stage_ = Stage::finished;
  std::uint64_t nonfinite_ = 0;  ///< of what goes into the sums of our range
  ReductionInput input_{};
  Statistics statistics_;
};

}  // namespace tightwire
