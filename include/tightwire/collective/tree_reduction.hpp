#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// one_shot for many ranks: all contributions reach everyone, who computes the same sum in fp32 in rank order, but a
/// rank passes on what it has got (Bruck et al., IEEE Trans. Parallel Distrib. Syst. 8(11), 1997). In round k, it sends
/// the contributions of itself and its next 2^k - 1 successors to the rank 2^k before it, and gets those behind them:
/// seen from a contribution, a binomial tree. The bits and bytes are those of one_shot; messages are log2(ranks) in
/// place of ranks - 1, and so are rounds in place of one. Sums themselves could not be passed on: a tree of sums has
/// another order.
///
/// Up to kDepth chunks are in flight. All memory is taken at construction.
class TreeReduction final : public Reduction {
 public:
  static constexpr std::size_t kDepth = kChunksUnderWay;

  /// The plan and the parameters must outlive it.
  TreeReduction(Transport& transport, const BucketPlan& plan, std::span<const PlannedParameter> parameters,
                FrameIdentity identity, float divisor)
      : transport_(transport),
        plan_(plan),
        parameters_(parameters),
        identity_(identity),
        divisor_(divisor),
        me_(static_cast<std::size_t>(transport.rank())),
        ranks_(static_cast<std::size_t>(transport.size())) {
    std::size_t largest = 0;
    for (const Chunk& chunk : plan.chunks) largest = std::max(largest, chunk.shares.front().frame_bytes());
    slots_.resize(std::min(kDepth, plan.chunks.size()));
    memory_ = Workspace(slots_.size() * ranks_ * largest);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      slots_[s].frames = memory_.data() + s * ranks_ * largest;
      slots_[s].receives.resize(rounds());
      slots_[s].sends.resize(rounds());
    }
    sources_.resize(ranks_);
    transport_.attach_pages(memory_.pages());
  }
  TreeReduction(const TreeReduction&) = delete;
  TreeReduction& operator=(const TreeReduction&) = delete;
  ~TreeReduction() override { transport_.detach(memory_.pages()); }

  void begin(const ReductionInput& input) override {
    input_ = input;
    nonfinite_ = input.nonfinite;
    next_ = finished_chunks_ = 0;
    everywhere_ = false;
    statistics_ = {.calls = 1, .gradient_bytes = plan_.element_bytes};
  }

  bool advance() override {
    bool progressed = false;
    while (!held_ && next_ < plan_.chunks.size() && slots_[next_ % slots_.size()].free) {
      launch(next_++);
      progressed = true;
    }
    for (Slot& slot : slots_) {
      while (!slot.free && slot.round < rounds() && transport_.done(slot.receives[slot.round])) {
        take_round(slot);
        progressed = true;
      }
      everywhere_ = everywhere_ || (!slot.free && slot.round == rounds());
      if (slot.free || slot.round < rounds() || !sent(slot)) continue;
      slot.free = true;
      ++finished_chunks_;
      progressed = true;
    }
    return progressed;
  }
  bool finished() const override { return finished_chunks_ == plan_.chunks.size(); }
  const Statistics& statistics() const override { return statistics_; }
  std::size_t frame_bytes() const override { return memory_.size(); }

  bool wants_wire() const override { return everywhere_ && next_ < plan_.chunks.size(); }
  void hold(bool held) override { held_ = held; }

  std::string waiting_for() const override {
    for (const Slot& slot : slots_)
      for (const auto* tickets : {&slot.receives, &slot.sends})
        for (const Ticket ticket : *tickets)
          if (std::string ranks = transport_.waiting_for(ticket); ticket != 0 && !ranks.empty()) return ranks;
    return "none";
  }

 private:
  struct Slot {
    bool free = true;
    std::size_t chunk = 0;
    std::size_t round = 0;        ///< whose contributions are not here yet
    std::byte* frames = nullptr;  ///< of all ranks, our own first, then those of the ranks behind us
    std::vector<Ticket> receives, sends;
  };

  std::size_t rounds() const {
    std::size_t rounds = 0;
    while (std::size_t{1} << rounds < ranks_) ++rounds;
    return rounds;
  }
  /// Contributions that are here before a round, and that come with it.
  static std::size_t here(std::size_t round) { return std::size_t{1} << round; }
  std::size_t coming(std::size_t round) const { return std::min(here(round), ranks_ - here(round)); }
  const Share& share(const Slot& slot) const { return plan_.chunks[slot.chunk].shares.front(); }
  std::byte* frame_of(const Slot& slot, std::size_t rank) const {
    return slot.frames + (rank + ranks_ - me_) % ranks_ * share(slot).frame_bytes();
  }
  FrameHeader header(const Slot& slot, std::size_t sender, std::uint64_t nonfinite) const {
    FrameHeader header = identity_.header(input_, FrameKind::contribution, sender, slot.chunk);
    header.payload_bytes = share(slot).payload_bytes;
    header.nonfinite = nonfinite;
    return header;
  }
  std::byte* element(const Slice& slice) const {
    const std::size_t bytes = element_bytes(parameters_[slice.parameter].type);
    return static_cast<std::byte*>(input_.data[slice.parameter]) + slice.begin * bytes;
  }

  Ticket post(const Slot& slot, Message::Kind kind, std::size_t round) {
    const bool sends = kind == Message::Kind::send;
    const std::size_t peer = (me_ + (sends ? ranks_ - here(round) : here(round))) % ranks_;
    const std::size_t frame = share(slot).frame_bytes(), bytes = coming(round) * frame;
    (sends ? statistics_.sent_bytes : statistics_.received_bytes) += bytes;
    const Message message{kind, static_cast<int>(peer), identity_.tag(input_, FrameKind::contribution, slot.chunk),
                          slot.frames + (sends ? 0 : here(round) * frame), bytes};
    return transport_.post({&message, 1});
  }
  void launch(std::size_t chunk) {
    Slot& slot = slots_[chunk % slots_.size()];
    slot.free = false;
    slot.chunk = chunk;
    slot.round = 0;
    for (std::size_t round = 0; round < rounds(); ++round)
      slot.receives[round] = post(slot, Message::Kind::receive, round);
    encode(slot);
    if (rounds() == 0) return sum(slot);
    slot.sends[0] = post(slot, Message::Kind::send, 0);
  }
  /// Contributions are looked at before they are passed on, so that damage is found where it happened.
  void take_round(Slot& slot) {
    const std::size_t round = slot.round++;
    slot.receives[round] = 0;
    {
      const detail::Work work(statistics_.combine_seconds);
      for (std::size_t i = here(round); i < here(round) + coming(round); ++i) {
        const std::size_t rank = (me_ + i) % ranks_;
        statistics_.nonfinite += frame::check(transport_, frame_of(slot, rank), header(slot, rank, 0)).nonfinite;
      }
    }
    if (slot.round == rounds()) return sum(slot);
    slot.sends[slot.round] = post(slot, Message::Kind::send, slot.round);
  }
  bool sent(Slot& slot) {
    for (Ticket& ticket : slot.sends) {
      if (!transport_.done(ticket)) return false;
      ticket = 0;
    }
    return true;
  }

  void encode(const Slot& slot) {
    const detail::Work work(statistics_.encode_seconds);
    std::uint64_t nonfinite = std::exchange(nonfinite_, 0);
    for (const Slice& slice : share(slot).slices) {
      const PlannedParameter& parameter = parameters_[slice.parameter];
      const Noise own{input_.seed, input_.use, parameter.number, static_cast<std::uint32_t>(me_) + 1,
                      parameter.first + slice.begin};
      Residual residual = advanced(input_.senders[slice.parameter], slice.begin);
      residual.bf16.rounding = own;
      nonfinite += parameter.coder->encode(parameter.type, {.data = element(slice),
                                                            .residual = residual,
                                                            .count = slice.count,
                                                            .wire = payload(slot, me_) + slice.wire_at,
                                                            .noise = parameter.stochastic ? &own : nullptr});
    }
    statistics_.nonfinite += nonfinite;
    frame::seal(transport_, frame_of(slot, me_), header(slot, me_, nonfinite));
  }
  std::byte* payload(const Slot& slot, std::size_t rank) const { return frame_of(slot, rank) + sizeof(FrameHeader); }
  void sum(const Slot& slot) {
    const detail::Work work(statistics_.combine_seconds);
    for (const Slice& slice : share(slot).slices) {
      const PlannedParameter& parameter = parameters_[slice.parameter];
      for (std::size_t rank = 0; rank < ranks_; ++rank) sources_[rank] = payload(slot, rank) + slice.wire_at;
      statistics_.nonfinite += parameter.coder
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
  }

  Transport& transport_;
  const BucketPlan& plan_;
  std::span<const PlannedParameter> parameters_;
  FrameIdentity identity_;
  float divisor_;
  std::size_t me_;
  std::size_t ranks_;
  Workspace memory_;
  std::vector<Slot> slots_;
  std::vector<const std::byte*> sources_;
  bool held_ = false, everywhere_ = false;
  ReductionInput input_{};
  std::uint64_t nonfinite_ = 0;  ///< of the input, until a frame of ours tells of it
  std::size_t next_ = 0;
  std::size_t finished_chunks_ = 0;
  Statistics statistics_;
};

}  // namespace tightwire
