#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/low_rank/lazy_residual.hpp>
#include <tightwire/low_rank/plan.hpp>

#include "product_kernels.hpp"
#include "resources.hpp"

namespace tightwire::cuda::detail {

/// low_rank::OwedOnHost on a device: what it does is put on the stream.
class OwedOnDevice {
 public:
  /// Memory for factors, and, pinned, for those that come from the host.
  struct Room {
    float *left, *right;
    float *pinned_left, *pinned_right;
  };
  OwedOnDevice(low_rank::Shape shape, Room room, int rank_of_job, Stream stream)
      : shape_(shape), room_(room), rank_of_job_(rank_of_job), stream_(stream) {}

  float* residual = nullptr;
  std::size_t rank = 0;

  low_rank::FactorProduct factors() const { return {rank, room_.left, room_.right}; }
  void set(const low_rank::FactorProduct& product);
  void copy(const OwedOnDevice& from);
  void subtract() const;

 private:
  low_rank::Shape shape_;
  Room room_;
  int rank_of_job_;
  Stream stream_;
};

/// low_rank::HostElements on a device: the same bits, by kernels that are put on streams. Factors come and go through
/// pinned memory.
class DeviceElements {
 public:
  struct Place {
    int rank = 0;  ///< of the job
    Stream encodes = nullptr, exchanges = nullptr;
  };
  static constexpr bool kSentWhole = false;
  /// Takes memory of the current device.
  DeviceElements(const low_rank::PlannedMatrix& plan, std::size_t columns, const Place& place);

  void begin(void* data, const Residual& residual);
  bool has_residual() const { return static_cast<bool>(residual_); }
  void pass(const Residual& residual);

  /// The first time on the stream of encodes, which has waited for the use before; then on that of exchanges.
  void multiply(low_rank::Side side, std::size_t columns, const float* fixed, float* product);
  bool ended() const { return ended_.reached(place_.rank); }
  void take(low_rank::Side side, std::span<float> product);

  void owe(const low_rank::FactorProduct& product) {
    lazy_.owe(product);
    copied_bytes_ += (count(low_rank::Side::left, product.rank) + count(low_rank::Side::right, product.rank)) * 4;
  }
  void undo();
  void write_nan() { write({}, 0); }
  /// What is too large for the gradient is counted on the device.
  std::uint64_t write(const low_rank::FactorProduct& product, float rest_times);

  void end_step(bool keep) { lazy_.end_step(keep); }
  void settle() { lazy_.settle_committed(); }
  void forget() { lazy_.forget(); }

  /// Elements of means that gradients could not hold, since the beginning. Once all that is on the streams has ended.
  std::uint64_t overflows() const { return *room_.overflows_pinned; }
  /// Of factors that so far came from the device or went there.
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  /// It stays, for a device that does not come to an end.
  void leave_memory() noexcept;

 private:
  struct Room {
    std::array<float*, 2> fixed, product, pinned_fixed, pinned_product;  ///< by side
    std::array<float*, 2> mean, pinned_mean;
    std::array<OwedOnDevice::Room, 2> owed;
    float* partial;
    unsigned long long *overflows, *overflows_pinned;
  };
  Room take_memory(std::size_t columns);
  low_rank::LazyResidual<OwedOnDevice> lazy_residual() const;
  std::size_t count(low_rank::Side side, std::size_t columns) const { return columns * length(side, plan_.shape); }
  LeftProductJob left_job() const;
  void add(LeftProductJob& job);
  void upload(float* to, float* pinned, const float* from, std::size_t count, Stream stream);

  low_rank::PlannedMatrix plan_;
  Place place_;
  Memory on_device_, pinned_;
  Room room_;
  low_rank::LazyResidual<OwedOnDevice> lazy_;
  Event ended_;
  std::byte* data_ = nullptr;
  Residual residual_;
  bool added_ = false, forgets_ = false;
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace tightwire::cuda::detail
