#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/collective/cache_choice.hpp>
#include <tightwire/collective/kept_results.hpp>
#include <tightwire/collective/reduction.hpp>
#include <tightwire/frame.hpp>
#include <tightwire/plan.hpp>
#include <tightwire/statistics.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire {

/// The all-reduce of what is encoded in blocks. All memory is taken at construction.
///
/// two_shot, per chunk (W ranks, share p belongs to rank p):
///   1. share p of our contribution is encoded and goes to rank p          W-1 messages each way
///   2. the owner sums all contributions in fp32, in rank order, and encodes the sum
///   3. the encoded sum goes to everyone                                   W-1 messages each way
/// An element is encoded twice whatever W is. Every rank, the owner included, holds what the same bytes decode to. Our
/// contribution to our own share takes the same way through the codec, in registers.
///
/// one_shot, per chunk: every encoded contribution goes to everyone, and all compute the same sum in fp32.
///
/// reduce_scatter is stages 1 and 2, with the sum as it is and no encoding of it; the owner tells the others in a
/// header how much of it was not finite. all_gather and broadcast are stage 3, of what the owner has.
///
/// Up to kDepth chunks are in flight: while one is on the wire, the next is encoded and another one decoded.
class BlockReduction final : public Reduction {
 public:
  static constexpr std::size_t kDepth = kChunksUnderWay;
  /// Bytes of a frame from which it may be written past the caches.
  static constexpr std::size_t kSmallestPastCache = std::size_t{4} << 10;
  /// Bytes of gradients above which decoded ones are written past the caches, which would not hold them anyway.
  static constexpr std::size_t kLargestCached = std::size_t{16} << 20;

  BlockReduction(Transport& transport, const BucketPlan& plan, std::span<const PlannedParameter> parameters,
                 FrameIdentity identity, float divisor)
      : transport_(transport),
        plan_(plan),
        parameters_(parameters),
        identity_(identity),
        divisor_(divisor),
        me_(static_cast<std::size_t>(transport.rank())),
        ranks_(static_cast<std::size_t>(transport.size())),
        allowed_(plan.chunks.size()) {
    for (const Chunk& chunk : plan.chunks)
      for (const Share& share : chunk.shares) stride_ = std::max(stride_, (share.frame_bytes() + 63) / 64 * 64);
    slots_.resize(std::min(kDepth, plan.chunks.size()));
    const std::size_t frames = two_shot() ? 4 * ranks_ : 2 * ranks_;
    memory_ = Workspace(slots_.size() * frames * stride_);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      slots_[s].memory = memory_.data() + s * frames * stride_;
      slots_[s].sends.resize(2 * ranks_);
      slots_[s].contribution_of.resize(ranks_);
      slots_[s].result_of.resize(ranks_);
    }
    round_.reserve(2 * ranks_);
    sources_.resize(ranks_);
    transport_.attach_pages(memory_.pages());
  }
  BlockReduction(const BlockReduction&) = delete;
  BlockReduction& operator=(const BlockReduction&) = delete;
  ~BlockReduction() override { transport_.detach(memory_.pages()); }

  /// Of an all-reduce in two shots: leaves the payloads of results there, until the next use.
  void keep_results(KeptResults& kept) { kept_ = &kept; }
  /// Of an all_gather whose plan passes on: what to pass on, one after the other. Chunks have the same numbers.
  void pass_on(std::vector<const KeptResults*> kept) { passed_on_ = std::move(kept); }

  void begin(const ReductionInput& input) override {
    if (kept_ != nullptr) kept_->clear();
    input_ = input;
    nonfinite_ = input.nonfinite;
    next_ = 0;
    finished_chunks_ = 0;
    everywhere_ = false;
    if (may_pass_caches()) began_ = Clock::now();
    statistics_ = {.calls = 1, .gradient_bytes = plan_.element_bytes};
  }

  bool finished() const override { return finished_chunks_ == plan_.chunks.size(); }
  const Statistics& statistics() const override { return statistics_; }
  std::size_t frame_bytes() const override { return memory_.size(); }

  bool wants_wire() const override { return everywhere_ && next_ < allowed_; }
  void hold(bool held) override { held_ = held; }
  /// Whether every rank is known to have begun this use.
  bool begun_everywhere() const { return everywhere_; }

  /// Of a reduction that works on what others leave behind, chunk by chunk: how many chunks it may work on so far.
  void allow(std::size_t chunks) { allowed_ = std::min(chunks, plan_.chunks.size()); }
  /// Leading chunks of which all that this rank gets is in place: of reduce_scatter its share, else all.
  std::size_t in_place() const {
    std::size_t chunks = next_;
    const bool scatters = plan_.operation == Operation::reduce_scatter;
    for (const Slot& slot : slots_)
      if (slot.state == State::contributing || (slot.state == State::gathering && !scatters))
        chunks = std::min(chunks, slot.chunk);
    return chunks;
  }

  /// Does what can be done without waiting. Returns whether anything was done. Throws what the transport throws, and
  /// Error(corrupt | mismatch) for a frame that is not what it must be.
  bool advance() override {
    bool progressed = false;
    while (!held_ && next_ < allowed_ && slots_[next_ % slots_.size()].state == State::free) {
      launch(next_++);
      progressed = true;
    }
    for (Slot& slot : slots_) {
      if (slot.state == State::contributing && transport_.done(slot.contributions)) {
        const Ticket arrived = std::exchange(slot.contributions, 0);
        everywhere_ = everywhere_ || (plan_.contributes() && slot.from_all);
        !plan_.contributes() ? publish(slot) : two_shot() ? combine(slot) : sum(slot);
        transport_.release(arrived);
        progressed = true;
      }
      if (slot.state == State::gathering && transport_.done(slot.results)) {
        const Ticket arrived = std::exchange(slot.results, 0);
        decode(slot);
        transport_.release(arrived);
        slot.state = State::draining;
        progressed = true;
      }
      if (slot.state == State::draining && sent(slot)) {
        slot.state = State::free;
        if (++finished_chunks_ == plan_.chunks.size() && may_pass_caches())
          cache_choice_.took(std::chrono::duration<double>(Clock::now() - began_).count());
        progressed = true;
      }
    }
    return progressed;
  }

  /// Ranks that this reduction waits for, as text.
  std::string waiting_for() const override {
    for (const Slot& slot : slots_) {
      for (Ticket ticket : {slot.contributions, slot.results})
        if (std::string ranks = transport_.waiting_for(ticket); slot.state != State::free && !ranks.empty())
          return ranks;
      for (Ticket ticket : slot.sends)
        if (std::string ranks = transport_.waiting_for(ticket); slot.state != State::free && !ranks.empty())
          return ranks;
    }
    return "none";
  }

 private:
  enum class State { free, contributing, gathering, draining };

  struct Slot {
    State state = State::free;
    std::size_t chunk = 0;
    std::byte* memory = nullptr;
    bool from_all = false;  ///< its contributions come from every other rank
    Ticket contributions = 0;
    Ticket results = 0;
    std::vector<Ticket> sends;
    // Where the frames that arrived lie, by rank: in our memory or in their sender's.
    std::vector<const std::byte*> contribution_of, result_of;
  };

  /// Small frames stay: the core that reads them waits for them, and takes them from this core's cache sooner.
  bool past_cache(const Share& share) const {
    return may_pass_caches() && share.payload_bytes >= kSmallestPastCache && cache_choice_.past_cache();
  }
  bool may_pass_caches() const { return two_shot() && transport_.shares_memory(); }
  bool two_shot() const { return plan_.algorithm == Algorithm::two_shot; }
  const Share& share(const Slot& slot, std::size_t owner) const {
    const Chunk& chunk = plan_.chunks[slot.chunk];
    return chunk.shares[two_shot() ? owner : 0];
  }

  // Places of the frames of a slot: [contribution out | contribution in | result out | result in][rank].
  std::byte* contribution_out(const Slot& slot, std::size_t to) const {
    return slot.memory + (two_shot() ? to : 0) * stride_;
  }
  std::byte* contribution_in(const Slot& slot, std::size_t from) const {
    return slot.memory + (ranks_ + from) * stride_;
  }
  std::byte* result_out(const Slot& slot) const { return slot.memory + 2 * ranks_ * stride_; }
  std::byte* result_in(const Slot& slot, std::size_t from) const { return slot.memory + (3 * ranks_ + from) * stride_; }
  static std::byte* payload(std::byte* frame) { return frame + sizeof(FrameHeader); }
  static const std::byte* payload(const std::byte* frame) { return frame + sizeof(FrameHeader); }

  std::byte* element(const Slice& slice) const {
    const std::size_t bytes = element_bytes(parameters_[slice.parameter].type);
    return static_cast<std::byte*>(input_.data[slice.parameter]) + slice.begin * bytes;
  }
  /// What is gathered is a sum's: every node of a hierarchy has a copy of its residual, rounded alike by whichever
  /// rank.
  Residual sender_residual(const Slice& slice) const {
    const std::uint32_t stream = plan_.contributes() ? own_stream() : 0;
    return rounded_like(advanced(input_.senders[slice.parameter], slice.begin), noise(slice, stream));
  }
  Residual owner_residual(const Slice& slice) const {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    if (parameter.coder->lossless(parameter.type)) return {};
    return rounded_like(advanced(input_.owner, slice.error_at), noise(slice, 0));
  }
  static Residual rounded_like(Residual residual, const Noise& noise) {
    residual.bf16.rounding = noise;
    return residual;
  }

  FrameHeader header(const Slot& slot, FrameKind kind, std::size_t sender, std::size_t payload_bytes,
                     std::uint64_t nonfinite) const {
    FrameHeader header = identity_.header(input_, kind, sender, slot.chunk);
    header.payload_bytes = payload_bytes;
    header.nonfinite = nonfinite;
    return header;
  }
  std::uint64_t tag(const Slot& slot, FrameKind kind) const { return identity_.tag(input_, kind, slot.chunk); }

  Ticket post_receives(Slot& slot, FrameKind kind) {
    round_.clear();
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      if (peer == me_) continue;
      const bool contribution = kind == FrameKind::contribution;
      const Share& its = share(slot, contribution ? me_ : peer);
      const std::size_t bytes = contribution ? its.frame_bytes() : plan_.result_bytes(its);
      if (bytes == 0) continue;
      std::byte* at = contribution ? contribution_in(slot, peer) : result_in(slot, peer);
      const std::byte*& place = (contribution ? slot.contribution_of : slot.result_of)[peer] = at;
      round_.push_back({Message::Kind::receive, static_cast<int>(peer), tag(slot, kind), at, bytes, &place});
      statistics_.received_bytes += bytes;
    }
    return round_.empty() ? 0 : transport_.post(round_);
  }
  Ticket post_send(const Slot& slot, FrameKind kind, std::size_t peer, std::byte* at, std::size_t bytes) {
    round_.clear();
    round_.push_back({Message::Kind::send, static_cast<int>(peer), tag(slot, kind), at, bytes});
    statistics_.sent_bytes += bytes;
    return transport_.post(round_);
  }

  /// Stream 0 is the sum's, whoever owns it; every rank's contributions have one of their own, since equal errors of
  /// all would not average out.
  Noise noise(const Slice& slice, std::uint32_t stream) const {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    return {input_.seed, input_.use, parameter.number, stream, parameter.first + slice.begin};
  }
  std::uint32_t own_stream() const { return static_cast<std::uint32_t>(me_) + 1; }

  /// Returns the number of elements of ours that are not finite.
  std::uint64_t encode(const Slot& slot, const Share& share, std::byte* frame, FrameKind kind) {
    const detail::Work work(statistics_.encode_seconds);
    std::uint64_t nonfinite = std::exchange(nonfinite_, 0);
    for (const Slice& slice : share.slices) {
      const PlannedParameter& parameter = parameters_[slice.parameter];
      const Noise own = noise(slice, own_stream());
      nonfinite += parameter.coder->encode(parameter.type, {.data = element(slice),
                                                            .residual = sender_residual(slice),
                                                            .count = slice.count,
                                                            .wire = payload(frame) + slice.wire_at,
                                                            .past_cache = past_cache(share),
                                                            .noise = parameter.stochastic ? &own : nullptr});
    }
    frame::seal(transport_, frame, header(slot, kind, me_, share.payload_bytes, nonfinite));
    return nonfinite;
  }

  void launch(std::size_t chunk) {
    Slot& slot = slots_[chunk % slots_.size()];
    slot.chunk = chunk;
    slot.state = State::contributing;
    if (plan_.contributes()) slot.contributions = post_receives(slot, FrameKind::contribution);
    slot.from_all = plan_.contributes() && round_.size() == ranks_ - 1;
    if (two_shot()) slot.results = post_receives(slot, FrameKind::result);
    if (!plan_.contributes()) return;
    if (!two_shot() && share(slot, me_).payload_bytes != 0)
      encode(slot, share(slot, me_), contribution_out(slot, me_), FrameKind::contribution);
    // Each rank starts with its successor, so that not all of them write to rank 0 first.
    for (std::size_t i = 1; i < ranks_; ++i) {
      const std::size_t peer = (me_ + i) % ranks_;
      const Share& its = share(slot, peer);
      if (its.payload_bytes == 0) continue;
      if (two_shot()) encode(slot, its, contribution_out(slot, peer), FrameKind::contribution);
      slot.sends[peer] =
          post_send(slot, FrameKind::contribution, peer, contribution_out(slot, peer), its.frame_bytes());
    }
  }

  std::uint64_t check(const Slot& slot, FrameKind kind, std::size_t sender, const std::byte* frame,
                      std::size_t payload_bytes) {
    return frame::check(transport_, frame, header(slot, kind, sender, payload_bytes, 0)).nonfinite;
  }

  /// two_shot, stage 2 and 3 for the share we own.
  void combine(Slot& slot) {
    slot.state = State::gathering;
    const Share& mine = share(slot, me_);
    if (mine.payload_bytes == 0) return;
    {
      const detail::Work work(statistics_.combine_seconds);
      std::uint64_t nonfinite = std::exchange(nonfinite_, 0);
      for (std::size_t peer = 0; peer < ranks_; ++peer)
        if (peer != me_)
          nonfinite += check(slot, FrameKind::contribution, peer, slot.contribution_of[peer], mine.payload_bytes);
      for (const Slice& slice : mine.slices) {
        const PlannedParameter& parameter = parameters_[slice.parameter];
        for (std::size_t peer = 0; peer < ranks_; ++peer)
          sources_[peer] = peer == me_ ? nullptr : payload(slot.contribution_of[peer]) + slice.wire_at;
        const Noise own = noise(slice, own_stream()), of_sum = noise(slice, 0);
        const bool stays = plan_.operation == Operation::reduce_scatter;
        const Coder::NonFinite met = parameter.coder->combine(
            parameter.type, {.sources = sources_,
                             .data = element(slice),
                             .sender = sender_residual(slice),
                             .owner = stays ? Residual{} : owner_residual(slice),
                             .count = slice.count,
                             .divisor = divisor_,
                             .wire = stays ? nullptr : payload(result_out(slot)) + slice.wire_at,
                             .out = element(slice),
                             .past_cache = past_cache(mine),
                             .sender_noise = parameter.stochastic ? &own : nullptr,
                             .owner_noise = parameter.stochastic ? &of_sum : nullptr});
        nonfinite += met.contribution + met.result;
      }
      statistics_.nonfinite += nonfinite;
      frame::seal(transport_, result_out(slot),
                  header(slot, FrameKind::result, me_, result_payload_bytes(mine), nonfinite));
      if (kept_ != nullptr) kept_->keep(slot.chunk, me_, payload(result_out(slot)), nonfinite);
    }
    send_result(slot, mine);
  }
  std::size_t result_payload_bytes(const Share& share) const {
    return plan_.operation == Operation::reduce_scatter ? 0 : share.payload_bytes;
  }
  void send_result(Slot& slot, const Share& mine) {
    for (std::size_t i = 1; i < ranks_; ++i) {
      const std::size_t peer = (me_ + i) % ranks_;
      slot.sends[ranks_ + peer] = post_send(slot, FrameKind::result, peer, result_out(slot), plan_.result_bytes(mine));
    }
  }

  /// all_gather, broadcast: our share to everyone, and to ourselves as its bytes say, where they say anything else.
  void publish(Slot& slot) {
    slot.state = State::gathering;
    const Share& mine = share(slot, me_);
    if (mine.payload_bytes == 0) return;
    if (plan_.passes_on) {
      copy_results(slot, mine);
      send_result(slot, mine);
      return;
    }
    statistics_.nonfinite += encode(slot, mine, result_out(slot), FrameKind::result);
    send_result(slot, mine);
    const detail::Work work(statistics_.decode_seconds);
    for (const Slice& slice : mine.slices)
      if (const PlannedParameter& p = parameters_[slice.parameter]; !p.coder->lossless(p.type))
        decode(slice, payload(result_out(slot)));
  }
  void copy_results(const Slot& slot, const Share& mine) {
    const detail::Work work(statistics_.encode_seconds);
    std::byte* at = payload(result_out(slot));
    std::uint64_t nonfinite = 0;
    for (const KeptResults* kept : passed_on_) {
      const std::span<const std::byte> results = kept->chunk(slot.chunk);
      if (!results.empty()) std::memcpy(at, results.data(), results.size());
      at += results.size();
      nonfinite += kept->nonfinite(slot.chunk);
    }
    frame::seal(transport_, result_out(slot), header(slot, FrameKind::result, me_, mine.payload_bytes, nonfinite));
  }

  void decode(Slot& slot) {
    const detail::Work work(statistics_.decode_seconds);
    for (std::size_t owner = 0; owner < ranks_; ++owner) {
      const Share& its = share(slot, owner);
      if (owner == me_ || its.payload_bytes == 0) continue;
      const std::byte* const frame = slot.result_of[owner];
      const std::uint64_t nonfinite = check(slot, FrameKind::result, owner, frame, result_payload_bytes(its));
      statistics_.nonfinite += nonfinite;
      if (kept_ != nullptr) kept_->keep(slot.chunk, owner, payload(frame), nonfinite);
      if (plan_.operation == Operation::reduce_scatter) continue;
      for (const Slice& slice : its.slices) decode(slice, payload(frame));
    }
  }
  void decode(const Slice& slice, const std::byte* from) {
    const PlannedParameter& parameter = parameters_[slice.parameter];
    parameter.coder->decode(parameter.type, {.wire = from + slice.wire_at,
                                             .count = slice.count,
                                             .out = element(slice),
                                             .past_cache = plan_.element_bytes > kLargestCached});
  }

  /// one_shot: the sum of every contribution, ours as its bytes say too.
  void sum(Slot& slot) {
    slot.state = State::draining;
    const Share& all = share(slot, me_);
    const detail::Work work(statistics_.combine_seconds);
    std::uint64_t nonfinite = 0;
    FrameHeader own;
    std::memcpy(&own, contribution_out(slot, me_), sizeof own);
    for (std::size_t peer = 0; peer < ranks_; ++peer)
      nonfinite += peer == me_
                       ? own.nonfinite
                       : check(slot, FrameKind::contribution, peer, slot.contribution_of[peer], all.payload_bytes);
    for (const Slice& slice : all.slices) {
      const PlannedParameter& parameter = parameters_[slice.parameter];
      for (std::size_t peer = 0; peer < ranks_; ++peer)
        sources_[peer] =
            payload(peer == me_ ? contribution_out(slot, me_) : slot.contribution_of[peer]) + slice.wire_at;
      nonfinite += parameter.coder
                       ->combine(parameter.type, {.sources = sources_,
                                                  .data = nullptr,
                                                  .sender = {},
                                                  .owner = {},
                                                  .count = slice.count,
                                                  .divisor = divisor_,
                                                  .wire = nullptr,
                                                  .out = element(slice)})
                       .result;
    }
    statistics_.nonfinite += nonfinite;
  }

  bool sent(Slot& slot) {
    for (Ticket& ticket : slot.sends) {
      if (!transport_.done(ticket)) return false;
      ticket = 0;
    }
    return true;
  }

  Transport& transport_;
  const BucketPlan& plan_;
  std::span<const PlannedParameter> parameters_;
  FrameIdentity identity_;
  float divisor_;
  std::size_t me_;
  std::size_t ranks_;
  std::size_t allowed_;
  std::size_t stride_ = 0;
  Workspace memory_;
  std::vector<Slot> slots_;
  std::vector<Message> round_;
  std::vector<const std::byte*> sources_;
  bool held_ = false, everywhere_ = false;
  KeptResults* kept_ = nullptr;
  std::vector<const KeptResults*> passed_on_;
  ReductionInput input_{};
  std::uint64_t nonfinite_ = 0;  ///< of the input, until a frame of ours tells of it
  TimePoint began_;
  CacheChoice cache_choice_;
  std::size_t next_ = 0;
  std::size_t finished_chunks_ = 0;
  Statistics statistics_;
};

}  // namespace tightwire
