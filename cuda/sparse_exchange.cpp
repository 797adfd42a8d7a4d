#include "sparse_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include <tightwire/host/nonfinite.hpp>
#include <tightwire/sparse/announcement.hpp>

namespace tightwire::cuda::detail {
namespace {

using sparse::kAnnouncement, sparse::kFrame;

/// What becomes of k chosen elements may be half as much again.
std::size_t about(std::size_t chosen, std::size_t of) { return std::min(of, chosen + chosen / 2); }

}  // namespace

/// Ours into the residual, sums into the gradient, and what is given back of the range that we own. Where owners choose
/// again, the sums are as many as a rank chose, and so are those of a range before. Runs of them: four in each piece of
/// a parameter.
std::size_t expected_changes(const sparse::Plan& plan) {
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  const bool two_shot = plan.algorithm == Algorithm::two_shot;
  std::size_t changes = 64 + (plan.parameters.size() + ranks) * 4 * sizeof(ChangeRun) / sizeof(ElementChange);
  for (const sparse::PlannedSparse& p : plan.parameters) {
    const std::size_t chosen = p.settings.chosen(p.count, 0), mine = about(chosen, p.count);
    const std::size_t all = std::min(p.count, ranks * chosen);
    changes += mine + (two_shot && p.settings.reselect ? mine : all) + (two_shot ? mine : 0);
  }
  return changes;
}

SparseExchange::SparseExchange(const sparse::Plan& plan, FrameIdentity identity, float divisor, const Place& place)
    : plan_(plan),
      identity_(identity),
      place_(place),
      me_(static_cast<std::size_t>(place.rank)),
      ranks_(static_cast<std::size_t>(plan.ranks)),
      ranges_(plan.elements(), two_shot() ? ranks_ : 1),
      pieces_(two_shot() ? ranks_ : 1),
      choice_(plan, place.momentum, place.rank, place.copies, place.timeout),
      changes_(expected_changes(plan), place.rank),
      sums_(plan, divisor) {
  cut_pieces();
  take_memory();
}

void SparseExchange::cut_pieces() {
  for (std::size_t r = 0; r < pieces_.size(); ++r) plan_.pieces(ranges_.begin(r), ranges_.end(r), pieces_[r]);
}

/// As on the host: room for half as much again as is expected; frames that are larger find memory of their own.
void SparseExchange::take_memory() {
  std::size_t expected = sizeof(FrameHeader) + 1024;
  for (const sparse::PlannedSparse& p : plan_.parameters) {
    expected += sparse::expected_bytes(p, (p.count + pieces_.size() - 1) / pieces_.size(), 0) * 3 / 2;
    const std::size_t most = p.settings.chosen(p.count, 0);
    writer_.reserve(most + most / 2);
    chosen_.reserve(most + most / 2);
  }
  const std::size_t stride = (expected + 63) / 64 * 64;
  const std::size_t slots = two_shot() ? 3 * ranks_ + 1 : ranks_ + 1;
  headers_ = Workspace(slots * sizeof(FrameHeader));
  memory_ = Workspace(slots * stride);
  for (std::size_t i = 0; i < slots; ++i) slots_.emplace_back(place_.messages, memory_.data() + i * stride, stride);
  payload_bytes_.resize(slots);
  place_.messages.reserve(slots * (stride + 256));
  round_.reserve(2 * ranks_);
  layers_.resize(plan_.parameters.size());
}

void SparseExchange::begin(const ReductionInput& input) {
  input_ = input;
  statistics_ = {};
  nonfinite_ = 0;
  if (plan_.elements() == 0) return;
  for (const sparse::PlannedSparse& p : plan_.parameters) statistics_.gradient_bytes += p.count * element_bytes(p.type);
  choice_.begin(input, place_.encodes);
  stage_ = Stage::choice;
}

bool SparseExchange::advance() {
  if (stage_ == Stage::finished) return false;
  if (stage_ == Stage::choice ? !choice_.ended() : !place_.messages.done(ticket_)) return false;
  const tightwire::detail::FloatEnvironment environment;
  switch (stage_) {
    case Stage::choice:
      contribute();
      post(FrameKind::contribution, kAnnouncement);
      stage_ = Stage::announcements;
      return true;
    case Stage::announcements:
      read_announcements(FrameKind::contribution);
      post(FrameKind::contribution, kFrame);
      stage_ = Stage::contributions;
      return true;
    case Stage::contributions:
      nonfinite_ += check_frames(FrameKind::contribution);
      if (!two_shot()) {
        sum();
        finish();
        return true;
      }
      combine();
      post(FrameKind::result, kAnnouncement);
      stage_ = Stage::result_announcements;
      return true;
    case Stage::result_announcements:
      read_announcements(FrameKind::result);
      post(FrameKind::result, kFrame);
      stage_ = Stage::results;
      return true;
    default:
      statistics_.nonfinite += check_frames(FrameKind::result);
      scatter();
      if (ranges_.rebalance()) cut_pieces();
      finish();
      return true;
  }
}

std::string SparseExchange::waiting_for() const {
  return stage_ == Stage::choice ? "the device" : place_.messages.waiting_for(ticket_);
}

void SparseExchange::end_step(bool keep) {
  if (ranges_.end_step(keep)) cut_pieces();
}
void SparseExchange::save(state::Records& records) const {
  if (two_shot()) ranges_.save(records, identity_.bucket);
}
void SparseExchange::restore(std::span<const state::Record> records, bool same_ranks) {
  if (two_shot() && same_ranks && ranges_.restore(records, identity_.bucket)) cut_pieces();
}

/// What was chosen -> frames for the owners, and our own.
void SparseExchange::contribute() {
  choices_ = choice_.read();
  std::uint64_t forgotten = choice_.forgotten();
  for (std::size_t i = 1; i <= ranks_; ++i) {
    const std::size_t owner = (me_ + i) % ranks_;
    if (!owns(owner) || (!two_shot() && i != 1)) continue;
    std::uint64_t nonfinite = std::exchange(forgotten, 0);
    const std::size_t bytes =
        writer_.write(plan_, choices_, pieces(owner), slots_[out(FrameKind::contribution, owner)], nonfinite, *this);
    seal(FrameKind::contribution, owner, bytes, nonfinite);
  }
}

/// Completes a frame and its announcement.
void SparseExchange::seal(FrameKind kind, std::size_t to, std::size_t payload_bytes, std::uint64_t nonfinite) {
  const std::size_t slot = out(kind, to);
  FrameHeader header = identity_.header(input_, kind, me_, kFrame);
  header.payload_bytes = payload_bytes;
  header.nonfinite = nonfinite;
  frame::seal(place_.messages, slots_[slot].data(), header);
  sparse::announce(place_.messages, announcement(slot), identity_.header(input_, kind, me_, kAnnouncement),
                   payload_bytes);
  payload_bytes_[slot] = payload_bytes;
}

/// A round of all announcements, or of all frames.
void SparseExchange::post(FrameKind kind, std::size_t chunk) {
  round_.clear();
  const auto add = [&](Message::Kind way, std::size_t peer, std::size_t slot) {
    const std::size_t bytes = sizeof(FrameHeader) + (chunk == kFrame ? payload_bytes_[slot] : 0);
    std::byte* const at = chunk == kFrame ? slots_[slot].data() : announcement(slot);
    round_.push_back({way, static_cast<int>(peer), 0, at, bytes});
    (way == Message::Kind::send ? statistics_.sent_bytes : statistics_.received_bytes) += bytes;
  };
  for (std::size_t i = 1; i < ranks_; ++i) {
    const std::size_t to = (me_ + i) % ranks_, from = (me_ + ranks_ - i) % ranks_;
    if (sends(kind, to)) add(Message::Kind::send, to, out(kind, to));
    if (receives(kind, from)) add(Message::Kind::receive, from, in(kind, from));
  }
  ticket_ = round_.empty() ? 0 : place_.messages.post(round_);
}

void SparseExchange::read_announcements(FrameKind kind) {
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer == me_ || !receives(kind, peer)) continue;
    const std::size_t slot = in(kind, peer);
    payload_bytes_[slot] = sparse::announced_bytes(place_.messages, announcement(slot),
                                                   identity_.header(input_, kind, peer, kAnnouncement), plan_,
                                                   pieces(kind == FrameKind::result ? peer : me_));
    slots_[slot].reserve(sizeof(FrameHeader) + payload_bytes_[slot]);
  }
}
/// Returns how many elements their senders met that are not finite.
std::uint64_t SparseExchange::check_frames(FrameKind kind) const {
  std::uint64_t met = 0;
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer == me_ || !receives(kind, peer)) continue;
    FrameHeader expected = identity_.header(input_, kind, peer, kFrame);
    expected.payload_bytes = payload_bytes_[in(kind, peer)];
    met += frame::check(place_.messages, slots_[in(kind, peer)].data(), expected).nonfinite;
  }
  return met;
}

void SparseExchange::open_contributions() {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::size_t slot = rank == me_ ? out(FrameKind::contribution, me_) : in(FrameKind::contribution, rank);
    FrameHeader header;
    std::memcpy(&header, slots_[slot].data(), sizeof header);
    if (rank == me_) nonfinite_ += header.nonfinite;
    sums_.open(rank, {slots_[slot].payload(), payload_bytes_[slot]});
  }
}
void SparseExchange::combine() {
  if (!owns(me_)) return;
  open_contributions();
  const std::size_t bytes = sums_.combine(pieces(me_), slots_[out(FrameKind::result, me_)], *this);
  nonfinite_ += sums_.take_nonfinite();
  statistics_.nonfinite += nonfinite_;
  seal(FrameKind::result, me_, bytes, std::exchange(nonfinite_, 0));
}
void SparseExchange::sum() {
  open_contributions();
  sums_.sum(pieces(me_), *this);
  statistics_.nonfinite += std::exchange(nonfinite_, 0) + sums_.take_nonfinite();
}
void SparseExchange::scatter() {
  for (std::size_t owner = 0; owner < ranks_; ++owner) {
    if (owner == me_ || !owns(owner)) continue;
    const std::size_t slot = in(FrameKind::result, owner);
    sums_.scatter(owner, pieces(owner), {slots_[slot].payload(), payload_bytes_[slot]}, *this);
  }
}
void SparseExchange::finish() {
  // What goes to an element again needs a later launch; in layers that is one for all parameters.
  std::size_t layers = 0;
  for (const Layer& each : layers_) layers = std::max(layers, each.empty ? 0 : each.number + 1);
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (const GivenBack& each : given_back_)
      if (each.layer == layer) changes_.add(ElementChanges::Kind::add_residual, each.parameter, each.index, each.bits);
  given_back_.clear();
  std::fill(layers_.begin(), layers_.end(), Layer{});
  changes_.apply(plan_, input_, place_.exchanges);
  stage_ = Stage::finished;
}

/// Those that were chosen are known; the others are where they were summed.
void SparseExchange::take_all(const sparse::Piece& piece, sparse::Entries& entries) {
  if (choices_[plan_.group_of[piece.parameter]].everything) {
    entries.resize(piece.count);
    std::iota(entries.indices.begin(), entries.indices.end(), 0u);
    choice_.read_all(piece, entries.values);
    return;
  }
  std::swap(chosen_, entries);
  entries.resize(piece.count);
  std::iota(entries.indices.begin(), entries.indices.end(), 0u);
  choice_.copy_all(piece, entries.values);
  for (std::size_t i = 0; i < chosen_.size(); ++i) entries.values[chosen_.indices[i]] = chosen_.values[i];
}
void SparseExchange::keep(const sparse::Piece& piece, sparse::IndexForm form, const sparse::Entries& entries,
                          std::span<const float> sent) {
  const bool lossless = plan_.parameters[piece.parameter].settings.values->lossless(ElementType::f32);
  if (lossless && form != sparse::IndexForm::all) return;  // they were taken out when they were chosen
  for (std::size_t i = 0; i < sent.size(); ++i)
    changes_.add(ElementChanges::Kind::residual, piece.parameter, piece.begin + entries.indices[i],
                 std::isfinite(sent[i]) ? tightwire::detail::to_bits(entries.values[i] - sent[i]) : kUndoneBits);
  if (input_.momenta.empty() || masks(piece.parameter)) return;
  for (std::size_t i = 0; i < sent.size(); ++i)
    if (!std::isfinite(sent[i]))
      changes_.add(ElementChanges::Kind::momentum, piece.parameter, piece.begin + entries.indices[i], kUndoneBits);
}
/// Where everything is sent, no momentum is ever stale.
bool SparseExchange::masks(std::size_t parameter) const {
  return place_.momentum.masking && !choices_[plan_.group_of[parameter]].everything;
}
/// Momentum of what was sent starts anew: of what was chosen it does already, but here others were sent with it.
void SparseExchange::were_sent(const sparse::Piece& piece, const sparse::Entries& entries) const {
  if (input_.momenta.empty() || !masks(piece.parameter) || entries.size() != piece.count) return;
  require(cudaMemsetAsync(input_.momenta[piece.parameter].after + piece.begin, 0, piece.count * sizeof(float),
                          place_.exchanges),
          "cudaMemsetAsync", place_.rank);
}
float SparseExchange::put(const sparse::Piece& piece, std::size_t index, float x) {
  const ElementType type = plan_.parameters[piece.parameter].type;
  std::uint32_t bits = 0;
  host::narrow(host::Level::baseline, type, &x, 1, reinterpret_cast<std::byte*>(&bits));
  changes_.add(ElementChanges::Kind::element, piece.parameter, piece.begin + index, bits);
  if (two_shot()) ranges_.count(plan_.starts[piece.parameter] + piece.begin + index);
  return host::rounded(type, x);
}
void SparseExchange::give_back(const sparse::Piece& piece, std::size_t index, float lost) {
  if (!has_residual(piece.parameter)) return;
  Layer& layer = layers_[piece.parameter];
  const std::size_t at = piece.begin + index;
  if (!layer.empty && at <= layer.last) ++layer.number;
  layer.empty = false;
  layer.last = at;
  given_back_.push_back({piece.parameter, at, layer.number, tightwire::detail::to_bits(lost)});
}

void SparseExchange::leave_memory() noexcept {
  choice_.leave_memory();
  changes_.leave_memory();
}

}  // namespace tightwire::cuda::detail
