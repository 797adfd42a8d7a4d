#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tightwire/collective/low_rank_reduction.hpp>
#include <tightwire/detail/float_environment.hpp>
#include <tightwire/low_rank/matrix.hpp>

#include "bucket_exchange.hpp"
#include "device_elements.hpp"
#include "grouped_messages.hpp"
#include "hosted_exchange.hpp"

namespace tightwire::cuda::detail {

/// The all-reduce of matrices as products of narrow factors, as tightwire::LowRankReduction is on the host, whose it
/// is but for what has as many elements as a matrix: kernels add residuals, multiply and write the product. Factors
/// come to the host, which orthonormalizes and sums them. Before the first step with factors matrices are sent whole,
/// as blocks of an exact codec are, without the host.
class LowRankExchange final : public HostedExchange {
 public:
  using Inner = BasicLowRankReduction<low_rank::BasicMatrix<DeviceElements>>;

  struct Place {
    HostMessages& messages;  ///< whose rounds go in the order of buckets
    Transport& channel;      ///< of the same rounds, for matrices that are sent whole
    DeviceElements::Place elements;
    int ranks;
  };
  /// The plan must outlive it. Takes memory of the current device.
  LowRankExchange(const low_rank::Plan& plan, const Inner::Identities& identities, float divisor, std::uint64_t seed,
                  const Place& place);

  void begin(const ReductionInput& input) override;
  bool advance() override;
  bool finished() const override { return !sends_whole_ && inner_.finished(); }
  /// Calls are those of the bucket, and none of its factors.
  const Statistics& statistics() const override { return statistics_; }
  std::string waiting_for() const override { return inner_.waiting_for(); }
  std::size_t factor_rank() const override { return inner_.factor_rank(); }
  void end_step(bool keep) override { inner_.end_step(keep); }
  void settle_residuals() override { inner_.settle_residuals(); }
  void save(state::Records& records) const override { inner_.save(records); }
  void restore(std::span<const state::Record> records, bool same_ranks) override {
    inner_.restore(records, same_ranks);
  }

  std::uint64_t host_bytes() const override;
  std::uint64_t late_nonfinite() const override;
  const Report* report() const override { return whole_ ? &whole_->report() : nullptr; }
  void leave_memory() noexcept override;

 private:
  void take_memory_for_whole(const FrameIdentity& identity, float divisor);

  const low_rank::Plan& plan_;
  Place place_;
  GroupedMessages messages_;
  Inner inner_;
  Memory frames_, report_;
  std::optional<BucketExchange> whole_;
  std::vector<Residual> no_residuals_;
  bool sends_whole_ = false;  ///< and its frames are not on their way yet
  Statistics statistics_;
};

}  // namespace tightwire::cuda::detail
