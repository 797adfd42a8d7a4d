#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <tightwire/bucket.hpp>

#include "bucket_exchange.hpp"
#include "random_kernels.hpp"
#include "resources.hpp"

namespace tightwire::cuda::detail {

/// The all-reduce of elements that are drawn at random, as tightwire::RandomReduction is on the host: they are gathered
/// side by side and summed as parameters of their own, and what was lost goes back to where it came from. Takes memory
/// of the current device.
class RandomExchange {
 public:
  /// The bucket must live as long.
  RandomExchange(const Bucket& bucket, std::vector<std::shared_ptr<const Coder>> coders, FrameIdentity identity,
                 float divisor, BucketExchange::Place place);

  /// Takes what is drawn of our gradients and residuals, and encodes it. The input stays until `exchange`.
  void encode(const ReductionInput& input, Stream stream);
  /// Sums, and puts means in their places.
  void exchange(Transport& transport, Stream stream);

  /// It stays, for a device that does not come to an end.
  void leave_memory() noexcept { memory_.leave(); }

  Statistics statistics() const;
  const Report& report() const { return inner_.report(); }

 private:
  /// Of a parameter, on the device.
  struct Drawn {
    std::uint32_t* indices;
    float* values;
    float* lost;  ///< null: nothing is
    std::uint64_t own_begin = 0, own_count = 0, error_at = 0;
  };
  DrawnElements elements(std::size_t p) const;
  bool feedback() const;
  void gather(Stream stream);

  const Bucket& bucket_;
  float divisor_;
  int rank_;
  Report* report_;
  BucketExchange inner_;
  Memory memory_;
  std::vector<Drawn> drawn_;
  const float* nothing_ = nullptr;  ///< residuals before
  float* owner_lost_ = nullptr;
  unsigned long long* overflows_ = nullptr;
  std::vector<void*> data_;
  std::vector<Residual> senders_;
  ReductionInput input_{};
};

}  // namespace tightwire::cuda::detail
