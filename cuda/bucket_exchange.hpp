#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/cuda.hpp>
#include <tightwire/cuda_transport.hpp>
#include <tightwire/plan.hpp>
#include <tightwire/statistics.hpp>

#include "frame_kernels.hpp"

namespace tightwire::cuda::detail {

/// The operation of one bucket on a device, as tightwire::BlockReduction is on the host: the same plan, of a single
/// chunk, the same jobs for coders, the same headers. What is a state machine there is the order of a stream here.
class BucketExchange {
 public:
  struct Place {
    int rank;
    int ranks;
    std::byte* frames;  ///< of the device, [frame_bytes(plan, ranks)]
    Report* report;     ///< pinned
  };
  /// The plan and the parameters must live as long.
  BucketExchange(const BucketPlan& plan, std::span<const PlannedParameter> parameters,
                 std::vector<std::shared_ptr<const Coder>> coders, FrameIdentity identity, float divisor, Place place);

  /// Memory for frames in bytes.
  static std::size_t frame_bytes(const BucketPlan& plan, int ranks);

  /// Our contributions, or our shard, -> frames. The input stays until `exchange`; buffers and residuals longer.
  void encode(const ReductionInput& input, Stream stream) {
    begin(input, stream);
    encode(stream);
  }
  /// In two steps, between which work may be put on the stream that makes our contributions.
  void begin(const ReductionInput& input, Stream stream);
  void encode(Stream stream);
  /// On the device, after `begin`: where elements of ours are counted that were not finite, and of which the
  /// contributions hold nothing.
  std::uint64_t* count_of_ours() const;
  /// Frames -> the sum in our buffers, or all shards, with all the rounds that takes.
  void exchange(Transport& transport, Stream stream);

  /// Of one reduction: bytes and calls.
  Statistics statistics() const;
  const Report& report() const { return *place_.report; }

 private:
  bool two_shot() const { return plan_.algorithm == Algorithm::two_shot; }
  bool empty() const { return plan_.chunks.empty(); }
  const Share& share(std::size_t owner) const { return plan_.chunks.front().shares[two_shot() ? owner : 0]; }
  // Places of frames: [contributions out | contributions in | result out | results in], each but the third of all
  // ranks.
  std::byte* frame(std::size_t place) const { return place_.frames + place * stride_; }
  std::byte* contribution_out(std::size_t to) const { return frame(two_shot() ? to : 0); }
  std::byte* contribution_in(std::size_t from) const { return frame(ranks_ + from); }
  std::byte* result_out() const { return frame(2 * ranks_); }
  std::byte* result_in(std::size_t from) const { return frame(2 * ranks_ + 1 + from); }
  tightwire::Coder::NonFinite* met() const;
  static std::byte* payload(std::byte* frame) { return frame + sizeof(FrameHeader); }
  static std::uint64_t* count_in(std::byte* frame);

  std::byte* element(const Slice& slice) const;
  Residual sender_residual(const Slice& slice) const { return advanced(input_.senders[slice.parameter], slice.begin); }
  Residual owner_residual(const Slice& slice) const;
  Noise noise(const Slice& slice, std::uint32_t stream) const;
  FrameHeader header(FrameKind kind) const { return identity_.header(input_, kind, me_, 0); }

  void encode(const Share& share, std::byte* frame, Stream stream) const;
  void post_round(Transport& transport, FrameKind kind, Stream stream);
  void add_message(Message::Kind kind, std::size_t peer, std::byte* at, std::size_t bytes);
  void check(FrameKind kind, Stream stream) const;
  void combine(Stream stream);
  void sum(Stream stream);
  void decode(Stream stream) const;

  const BucketPlan& plan_;
  std::span<const PlannedParameter> parameters_;
  std::vector<std::shared_ptr<const Coder>> coders_;
  FrameIdentity identity_;
  float divisor_;
  Place place_;
  std::size_t me_, ranks_, stride_ = 0;
  ReductionInput input_{};
  std::vector<Message> round_;
  std::vector<const std::byte*> sources_;
};

}  // namespace tightwire::cuda::detail
