#include "bucket_exchange.hpp"

#include <algorithm>
#include <utility>

namespace tightwire::cuda::detail {
namespace {

std::size_t frame_stride(const BucketPlan& plan) {
  std::size_t stride = 0;
  for (const Chunk& chunk : plan.chunks)
    for (const Share& share : chunk.shares) stride = std::max(stride, (share.frame_bytes() + 255) / 256 * 256);
  return stride;
}
std::size_t frames_of(int ranks) { return 3 * static_cast<std::size_t>(ranks) + 1; }

}  // namespace

std::size_t BucketExchange::frame_bytes(const BucketPlan& plan, int ranks) {
  constexpr std::size_t kMet = 256;
  return frames_of(ranks) * frame_stride(plan) + kMet;
}

BucketExchange::BucketExchange(const BucketPlan& plan, std::span<const PlannedParameter> parameters,
                               std::vector<std::shared_ptr<const Coder>> coders, FrameIdentity identity, float divisor,
                               Place place)
    : plan_(plan),
      parameters_(parameters),
      coders_(std::move(coders)),
      identity_(identity),
      divisor_(divisor),
      place_(place),
      me_(static_cast<std::size_t>(place.rank)),
      ranks_(static_cast<std::size_t>(place.ranks)),
      stride_(frame_stride(plan)),
      sources_(ranks_) {
  round_.reserve(2 * ranks_);
}

tightwire::Coder::NonFinite* BucketExchange::met() const {
  return reinterpret_cast<tightwire::Coder::NonFinite*>(frame(frames_of(place_.ranks)));
}
std::uint64_t* BucketExchange::count_in(std::byte* frame) {
  return reinterpret_cast<std::uint64_t*>(frame + offsetof(FrameHeader, nonfinite));
}
std::byte* BucketExchange::element(const Slice& slice) const {
  const std::size_t bytes = element_bytes(parameters_[slice.parameter].type);
  return static_cast<std::byte*>(input_.data[slice.parameter]) + slice.begin * bytes;
}
Residual BucketExchange::owner_residual(const Slice& slice) const {
  const PlannedParameter& parameter = parameters_[slice.parameter];
  return parameter.coder->lossless(parameter.type) ? Residual{} : advanced(input_.owner, slice.error_at);
}
Noise BucketExchange::noise(const Slice& slice, std::uint32_t stream) const {
  const PlannedParameter& parameter = parameters_[slice.parameter];
  return {input_.seed, input_.use, parameter.number, stream, parameter.first + slice.begin};
}

void BucketExchange::encode(const Share& share, std::byte* frame, Stream stream) const {
  for (const Slice& slice : share.slices) {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    const Noise own = noise(slice, static_cast<std::uint32_t>(me_) + 1);
    coders_[slice.parameter]->encode(parameter.type,
                                     {.data = element(slice),
                                      .residual = sender_residual(slice),
                                      .count = slice.count,
                                      .wire = payload(frame) + slice.wire_at,
                                      .noise = parameter.stochastic ? &own : nullptr},
                                     count_in(frame), stream);
  }
}

/// In the first frame that tells of us, or in the sum that is ours.
std::uint64_t* BucketExchange::count_of_ours() const {
  if (!empty() && !two_shot()) return count_in(contribution_out(me_));
  for (std::size_t i = 1; i < ranks_ && !empty(); ++i)
    if (const std::size_t peer = (me_ + i) % ranks_; share(peer).payload_bytes != 0)
      return count_in(contribution_out(peer));
  return &met()->contribution;
}

void BucketExchange::begin(const ReductionInput& input, Stream stream) {
  input_ = input;
  if (empty()) return;
  begin_frames({.contribution = header(FrameKind::contribution),
                .result = header(FrameKind::result),
                .contributions = {contribution_out(0), stride_},
                .count = two_shot() ? static_cast<unsigned>(ranks_) : 1,
                .result_frame = result_out(),
                .met = met()},
               place_.rank, stream);
}

void BucketExchange::encode(Stream stream) {
  if (empty()) return;
  if (!plan_.contributes()) return encode(share(me_), result_out(), stream);
  if (!two_shot()) return encode(share(0), contribution_out(0), stream);
  for (std::size_t i = 1; i < ranks_; ++i) {
    const std::size_t peer = (me_ + i) % ranks_;
    encode(share(peer), contribution_out(peer), stream);
  }
}

void BucketExchange::add_message(Message::Kind kind, std::size_t peer, std::byte* at, std::size_t bytes) {
  if (bytes != 0) round_.push_back({kind, static_cast<int>(peer), 0, at, bytes});
}

/// Contributions go to their owners and ours come to us; or results of all shares go to everyone.
void BucketExchange::post_round(Transport& transport, FrameKind kind, Stream stream) {
  const bool contributions = kind == FrameKind::contribution;
  round_.clear();
  for (std::size_t i = 1; i < ranks_; ++i) {
    const std::size_t to = (me_ + i) % ranks_, from = (me_ + ranks_ - i) % ranks_;
    add_message(Message::Kind::send, to, contributions ? contribution_out(to) : result_out(),
                contributions ? share(to).frame_bytes() : plan_.result_bytes(share(me_)));
    add_message(Message::Kind::receive, from, contributions ? contribution_in(from) : result_in(from),
                contributions ? share(me_).frame_bytes() : plan_.result_bytes(share(from)));
  }
  if (!round_.empty()) transport.post(round_, stream);
}

void BucketExchange::check(FrameKind kind, Stream stream) const {
  const bool contributions = kind == FrameKind::contribution, ends = !contributions || !two_shot();
  RankSet from{};
  for (std::size_t peer = 0; peer < ranks_; ++peer)
    if (peer != me_ && share(contributions ? me_ : peer).payload_bytes != 0) insert(from, peer);
  std::byte* const own = two_shot() ? result_out() : contribution_out(me_);
  check_frames({.expected = header(kind),
                .received = {contributions ? contribution_in(0) : result_in(0), stride_},
                .from = from,
                .ranks = static_cast<unsigned>(ranks_),
                .met = contributions ? met() : nullptr,
                .own_frame = ends ? own : nullptr,
                .into_frame = ends ? nullptr : result_out(),
                .report = place_.report},
               place_.rank, stream);
}

void BucketExchange::combine(Stream stream) {
  const bool stays = plan_.operation == Operation::reduce_scatter;  // the sum, as it is
  for (const Slice& slice : share(me_).slices) {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    for (std::size_t peer = 0; peer < ranks_; ++peer)
      sources_[peer] = peer == me_ ? nullptr : payload(contribution_in(peer)) + slice.wire_at;
    const Noise own = noise(slice, static_cast<std::uint32_t>(me_) + 1), of_sum = noise(slice, 0);
    coders_[slice.parameter]->combine(parameter.type,
                                      {.sources = sources_,
                                       .data = element(slice),
                                       .sender = sender_residual(slice),
                                       .owner = stays ? Residual{} : owner_residual(slice),
                                       .count = slice.count,
                                       .divisor = divisor_,
                                       .wire = stays ? nullptr : payload(result_out()) + slice.wire_at,
                                       .out = element(slice),
                                       .sender_noise = parameter.stochastic ? &own : nullptr,
                                       .owner_noise = parameter.stochastic ? &of_sum : nullptr},
                                      met(), stream);
  }
}

void BucketExchange::sum(Stream stream) {
  for (const Slice& slice : share(me_).slices) {
    for (std::size_t peer = 0; peer < ranks_; ++peer)
      sources_[peer] = payload(peer == me_ ? contribution_out(me_) : contribution_in(peer)) + slice.wire_at;
    coders_[slice.parameter]->combine(parameters_[slice.parameter].type,
                                      {.sources = sources_,
                                       .data = nullptr,
                                       .sender = {},
                                       .owner = {},
                                       .count = slice.count,
                                       .divisor = divisor_,
                                       .wire = nullptr,
                                       .out = element(slice)},
                                      met(), stream);
  }
}

void BucketExchange::decode(Stream stream) const {
  for (std::size_t owner = 0; owner < ranks_; ++owner) {
    if (owner == me_ && plan_.contributes()) continue;  // combining has done it
    std::byte* const frame = owner == me_ ? result_out() : result_in(owner);
    for (const Slice& slice : share(owner).slices)
      coders_[slice.parameter]->decode(
          parameters_[slice.parameter].type,
          {.wire = payload(frame) + slice.wire_at, .count = slice.count, .out = element(slice)}, stream);
  }
}

void BucketExchange::exchange(Transport& transport, Stream stream) {
  if (empty()) return;
  if (plan_.contributes()) {
    post_round(transport, FrameKind::contribution, stream);
    two_shot() ? combine(stream) : sum(stream);
    check(FrameKind::contribution, stream);
    if (!two_shot()) return;
  }
  post_round(transport, FrameKind::result, stream);
  if (plan_.operation != Operation::reduce_scatter) decode(stream);
  check(FrameKind::result, stream);
}

Statistics BucketExchange::statistics() const {
  Statistics statistics{.calls = 1, .gradient_bytes = plan_.element_bytes};
  if (empty()) return statistics;
  statistics.sent_bytes = plan_.wire_bytes(place_.rank);
  for (std::size_t peer = 0; peer < ranks_; ++peer) {
    if (peer == me_) continue;
    if (plan_.contributes()) statistics.received_bytes += share(me_).frame_bytes();
    if (two_shot()) statistics.received_bytes += plan_.result_bytes(share(peer));
  }
  return statistics;
}

}  // namespace tightwire::cuda::detail
