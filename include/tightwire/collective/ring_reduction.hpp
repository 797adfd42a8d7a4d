#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/frame.hpp>
#include <tightwire/plan.hpp>
#include <tightwire/statistics.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire {

/// The all-reduce of what is encoded in 16 bits or more per element, along the ranks in their order. Per chunk:
///
///   1. up: rank 0 sends its contribution, in fp32, to rank 1; each adds its own and sends the sum on
///   2. the last rank has the sum in rank order, divides and encodes it
///   3. down: the encoded sum goes back from rank to rank, as it is
///
/// The bits are those of two_shot: a ring in which every rank owned a share would begin each share's sum with another
/// rank, and the cuts would show in the result. The price is 2 sizes per rank where that sends 2 (ranks - 1) / ranks,
/// and what is lost in encoding sums is all the last rank's. A rank has two neighbours whatever the ranks, so a node
/// whose ranks follow each other sends every chunk over its link once each way, where two_shot does so for each rank
/// inside. Chunks follow each other up and down, kDepth of them between two ranks. All memory is taken at construction.
class RingReduction final : public Reduction {
 public:
  static constexpr std::size_t kDepth = kChunksUnderWay;

  /// `exact`: the codec of the sums passed on. The plan and the parameters must outlive it.
  RingReduction(Transport& transport, const BucketPlan& plan, std::span<const PlannedParameter> parameters,
                FrameIdentity identity, float divisor, std::shared_ptr<const Coder> exact)
      : transport_(transport),
        plan_(plan),
        parameters_(parameters),
        identity_(identity),
        divisor_(divisor),
        exact_(std::move(exact)),
        me_(static_cast<std::size_t>(transport.rank())),
        last_(static_cast<std::size_t>(transport.size()) - 1) {
    std::size_t up = 0, down = 0, encoded = 0, elements = 0;
    const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
    for (const Chunk& chunk : plan.chunks) {
      up = std::max(up, aligned(BucketPlan::partial_frame_bytes(chunk)));
      down = std::max(down, aligned(chunk.shares.back().frame_bytes()));
      for (const Slice& slice : chunk.shares.back().slices) {
        encoded = std::max(encoded, aligned(parameters[slice.parameter].coder->wire_bytes(slice.count)));
        elements = std::max(elements, aligned(detail::partial_bytes(slice.count)));
      }
    }
    for (const PlannedParameter& p : parameters)
      as_is_.push_back(p.type == ElementType::f32 && p.coder->spec() == exact_->spec());
    const std::size_t scratch = encoded + 2 * elements;
    memory_ = Workspace(kDepth * (2 * up + down) + scratch);
    for (std::size_t s = 0; s < kDepth; ++s) {
      std::byte* const at = memory_.data() + s * (2 * up + down);
      upward_[s] = {.in = at, .out = at + up};
      downward_[s] = {.in = at + 2 * up, .out = at + 2 * up};
    }
    encoded_ = memory_.data() + kDepth * (2 * up + down);
    own_ = encoded_ + encoded;
    sum_ = own_ + elements;
    transport_.attach_pages(memory_.pages());
  }
  RingReduction(const RingReduction&) = delete;
  RingReduction& operator=(const RingReduction&) = delete;
  ~RingReduction() override { transport_.detach(memory_.pages()); }

  void begin(const ReductionInput& input) override {
    input_ = input;
    nonfinite_ = input.nonfinite;
    up_ = down_ = {};
    everywhere_ = false;
    statistics_ = {.calls = 1, .gradient_bytes = plan_.element_bytes};
  }

  bool advance() override {
    post_receives();
    bool progressed = false;
    while (!held_ && may_add()) {
      add(up_.done++);
      everywhere_ = everywhere_ || last();
      progressed = true;
    }
    while (may_take_result()) {
      take_result(down_.done++);
      everywhere_ = true;
      progressed = true;
    }
    progressed = drain(upward_, up_) || progressed;
    progressed = drain(downward_, down_) || progressed;
    return progressed;
  }
  bool finished() const override { return up_.sent == plan_.chunks.size() && down_.sent == plan_.chunks.size(); }
  const Statistics& statistics() const override { return statistics_; }
  std::size_t frame_bytes() const override { return memory_.size(); }

  bool wants_wire() const override { return everywhere_ && up_.done < plan_.chunks.size(); }
  void hold(bool held) override { held_ = held; }

  std::string waiting_for() const override {
    for (const auto* slots : {&upward_, &downward_})
      for (const Slot& slot : *slots)
        for (const Ticket ticket : {slot.receive, slot.send})
          if (std::string ranks = transport_.waiting_for(ticket); ticket != 0 && !ranks.empty()) return ranks;
    return "none";
  }

 private:
  struct Slot {
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    const std::byte* arrived = nullptr;  ///< in our memory or in the sender's
    Ticket receive = 0, send = 0;
  };
  using Slots = std::array<Slot, kDepth>;
  /// Leading chunks whose frame is expected, was worked on, and has left, on the way up or down.
  struct Course {
    std::size_t posted = 0, done = 0, sent = 0;
  };

  bool first() const { return me_ == 0; }
  bool last() const { return me_ == last_; }
  static Slot& slot_of(Slots& slots, std::size_t chunk) { return slots[chunk % kDepth]; }
  const Share& share(std::size_t chunk) const { return plan_.chunks[chunk].shares.back(); }
  static std::byte* payload(std::byte* frame) { return frame + sizeof(FrameHeader); }
  static const std::byte* payload(const std::byte* frame) { return frame + sizeof(FrameHeader); }
  std::byte* element(const Slice& slice) const {
    const std::size_t bytes = element_bytes(parameters_[slice.parameter].type);
    return static_cast<std::byte*>(input_.data[slice.parameter]) + slice.begin * bytes;
  }
  FrameHeader header(FrameKind kind, std::size_t chunk, std::size_t sender, std::uint64_t nonfinite) const {
    FrameHeader header = identity_.header(input_, kind, sender, chunk);
    header.payload_bytes =
        kind == FrameKind::contribution ? plan_.chunks[chunk].partial_bytes : share(chunk).payload_bytes;
    header.nonfinite = nonfinite;
    return header;
  }
  /// As two_shot draws it.
  Noise noise(const Slice& slice, std::size_t stream) const {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    return {input_.seed, input_.use, parameter.number, static_cast<std::uint32_t>(stream),
            parameter.first + slice.begin};
  }
  static Residual rounded_like(Residual residual, const Noise& noise) {
    residual.bf16.rounding = noise;
    return residual;
  }

  Ticket post(Message::Kind kind, std::size_t peer, FrameKind of, std::size_t chunk, Slot& slot) {
    const std::size_t bytes = of == FrameKind::contribution ? BucketPlan::partial_frame_bytes(plan_.chunks[chunk])
                                                            : share(chunk).frame_bytes();
    Message message{kind, static_cast<int>(peer), identity_.tag(input_, of, chunk), slot.out, bytes};
    if (kind == Message::Kind::receive) {
      message.data = slot.in;
      slot.arrived = slot.in;
      // What is sent on must be in our memory, since the sender's is not for our messages.
      if (of == FrameKind::contribution || first()) message.place = &slot.arrived;
    }
    (kind == Message::Kind::send ? statistics_.sent_bytes : statistics_.received_bytes) += bytes;
    return transport_.post({&message, 1});
  }
  void post_receives() {
    const std::size_t chunks = plan_.chunks.size();
    for (; !first() && up_.posted < std::min(chunks, up_.done + kDepth); ++up_.posted) {
      Slot& slot = slot_of(upward_, up_.posted);
      slot.receive = post(Message::Kind::receive, me_ - 1, FrameKind::contribution, up_.posted, slot);
    }
    for (; !last() && down_.posted < std::min(chunks, down_.sent + kDepth); ++down_.posted) {
      Slot& slot = slot_of(downward_, down_.posted);
      slot.receive = post(Message::Kind::receive, me_ + 1, FrameKind::result, down_.posted, slot);
    }
  }
  bool drain(Slots& slots, Course& course) {
    bool progressed = false;
    for (; course.sent < course.done; ++course.sent) {
      Ticket& ticket = slot_of(slots, course.sent).send;
      if (!transport_.done(ticket)) break;
      ticket = 0;
      progressed = true;
    }
    return progressed;
  }
  bool arrived(Slot& slot) { return transport_.done(slot.receive); }

  /// Whether the next chunk's sum so far is here, and the frame that it goes on in is free.
  bool may_add() {
    if (up_.done == plan_.chunks.size()) return false;
    const Course& onward = last() ? down_ : up_;
    if (up_.done >= onward.sent + kDepth) return false;
    return first() || (up_.posted > up_.done && arrived(slot_of(upward_, up_.done)));
  }
  void add(std::size_t chunk) {
    Slot& slot = slot_of(upward_, chunk);
    std::uint64_t nonfinite = std::exchange(nonfinite_, 0);
    {
      const detail::Work work(first() ? statistics_.encode_seconds : statistics_.combine_seconds);
      if (!first())
        nonfinite +=
            frame::check(transport_, slot.arrived, header(FrameKind::contribution, chunk, me_ - 1, 0)).nonfinite;
      std::size_t at = 0;
      for (const Slice& slice : share(chunk).slices) {
        nonfinite += last() ? close(slice, slot, at, chunk) : pass_on(slice, slot, at);
        at += detail::partial_bytes(slice.count);
      }
      const FrameKind kind = last() ? FrameKind::result : FrameKind::contribution;
      frame::seal(transport_, last() ? slot_of(downward_, chunk).out : slot.out, header(kind, chunk, me_, nonfinite));
    }
    if (const Ticket received = std::exchange(slot.receive, 0); received != 0) transport_.release(received);
    if (!last()) {
      slot.send = post(Message::Kind::send, me_ + 1, FrameKind::contribution, chunk, slot);
      return;
    }
    statistics_.nonfinite += nonfinite;
    Slot& result = slot_of(downward_, chunk);
    result.send = post(Message::Kind::send, me_ - 1, FrameKind::result, chunk, result);
    down_.done = chunk + 1;
  }

  /// Our contribution in fp32, as everyone would decode it. Returns its elements that are not finite.
  std::uint64_t contribute(const Slice& slice, std::byte* to) {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    const Noise own = noise(slice, me_ + 1);
    const bool as_is = as_is_[slice.parameter];
    const std::uint64_t nonfinite = parameter.coder->encode(
        parameter.type, {.data = element(slice),
                         .residual = rounded_like(advanced(input_.senders[slice.parameter], slice.begin), own),
                         .count = slice.count,
                         .wire = as_is ? to : encoded_,
                         .noise = parameter.stochastic ? &own : nullptr});
    if (!as_is) parameter.coder->decode(ElementType::f32, {.wire = encoded_, .count = slice.count, .out = to});
    return nonfinite;
  }
  /// The sum so far and our contribution, which is `own_`, or if that is null what the buffer holds.
  Coder::NonFinite sum(const Slice& slice, const std::byte* so_far, const Coder::Combine& to, ElementType type,
                       const std::byte* own) {
    const std::array<const std::byte*, 2> sources{so_far, own};
    Coder::Combine job = to;
    job.sources = sources;
    job.data = own == nullptr ? element(slice) : nullptr;
    job.count = slice.count;
    return exact_->combine(type, job);
  }
  std::uint64_t pass_on(const Slice& slice, Slot& slot, std::size_t at) {
    std::byte* const out = payload(slot.out) + at;
    if (first()) return contribute(slice, out);
    const bool as_is = as_is_[slice.parameter];
    const std::uint64_t encoded = as_is ? 0 : contribute(slice, own_);
    const Coder::NonFinite met =
        sum(slice, payload(slot.arrived) + at, to(out, 1.0f, nullptr), ElementType::f32, as_is ? nullptr : own_);
    const std::size_t bytes = slice.count * sizeof(float);
    std::memset(out + bytes, 0, detail::partial_bytes(slice.count) - bytes);
    return encoded + met.contribution;
  }
  static Coder::Combine to(void* out, float divisor, std::byte* wire) {
    return {.sources = {},
            .data = nullptr,
            .sender = {},
            .owner = {},
            .count = 0,
            .divisor = divisor,
            .wire = wire,
            .out = out};
  }
  /// The whole sum, encoded for everyone, and here what that decodes to. Returns what of both was not finite.
  std::uint64_t close(const Slice& slice, Slot& slot, std::size_t at, std::size_t chunk) {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    std::byte* const wire = payload(slot_of(downward_, chunk).out) + slice.wire_at;
    const std::byte* const so_far = payload(slot.arrived) + at;
    if (as_is_[slice.parameter]) {
      const auto met = sum(slice, so_far, to(element(slice), divisor_, wire), ElementType::f32, nullptr);
      return met.contribution + met.result;
    }
    const std::uint64_t contribution = contribute(slice, own_);
    if (parameter.coder->lossless(parameter.type)) {
      const auto met = sum(slice, so_far, to(element(slice), divisor_, nullptr), parameter.type, own_);
      parameter.coder->encode(parameter.type,
                              {.data = element(slice), .residual = {}, .count = slice.count, .wire = wire});
      return contribution + met.result;
    }
    sum(slice, so_far, to(sum_, divisor_, nullptr), ElementType::f32, own_);
    const Noise of_sum = noise(slice, 0);
    const std::uint64_t result = parameter.coder->encode(
        ElementType::f32, {.data = sum_,
                           .residual = rounded_like(advanced(input_.owner, slice.error_at), of_sum),
                           .count = slice.count,
                           .wire = wire,
                           .noise = parameter.stochastic ? &of_sum : nullptr});
    decode(slice, wire);
    return contribution + result;
  }

  bool may_take_result() { return !last() && down_.posted > down_.done && arrived(slot_of(downward_, down_.done)); }
  /// Sends the sum on before it is decoded, since others wait.
  void take_result(std::size_t chunk) {
    Slot& slot = slot_of(downward_, chunk);
    const Ticket received = std::exchange(slot.receive, 0);
    const detail::Work work(statistics_.decode_seconds);
    statistics_.nonfinite +=
        frame::check(transport_, slot.arrived, header(FrameKind::result, chunk, last_, 0)).nonfinite;
    if (!first()) slot.send = post(Message::Kind::send, me_ - 1, FrameKind::result, chunk, slot);
    for (const Slice& slice : share(chunk).slices) decode(slice, payload(slot.arrived) + slice.wire_at);
    transport_.release(received);
  }
  void decode(const Slice& slice, const std::byte* from) {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    parameter.coder->decode(parameter.type, {.wire = from, .count = slice.count, .out = element(slice)});
  }

  Transport& transport_;
  const BucketPlan& plan_;
  std::span<const PlannedParameter> parameters_;
  FrameIdentity identity_;
  float divisor_;
  std::shared_ptr<const Coder> exact_;
  std::vector<bool> as_is_;  ///< by parameter: whether it is summed as it is
  std::size_t me_, last_;
  Workspace memory_;
  Slots upward_, downward_;
  std::byte *encoded_ = nullptr, *own_ = nullptr, *sum_ = nullptr;
  ReductionInput input_{};
  std::uint64_t nonfinite_ = 0;  ///< of the input, until a frame of ours tells of it
  Course up_, down_;
  bool held_ = false, everywhere_ = false;
  Statistics statistics_;
};

}  // namespace tightwire
