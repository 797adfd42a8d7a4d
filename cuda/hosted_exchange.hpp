#pragma once
#include <cstdint>

#include <tightwire/collective/reduction.hpp>

#include "frame_kernels.hpp"

namespace tightwire::cuda::detail {

/// A reduction of what is on a device of which a part goes through the host, which knows no sooner what to send: so a
/// stream cannot be told all of it at once, and `advance` goes on when the device, or a round, has ended. `begin` puts
/// what comes before the first round on a stream; the input stays until the reduction has finished, buffers and
/// residuals longer.
class HostedExchange : public Reduction {
 public:
  /// Bytes that so far came from the device or went there, without those of messages.
  virtual std::uint64_t host_bytes() const = 0;
  /// Elements that were not finite and are not in the statistics, since the beginning: kernels count them. Once the
  /// stream has ended.
  virtual std::uint64_t late_nonfinite() const { return 0; }
  /// What kernels have found out about frames that did not go through the host; null: there are none.
  virtual const Report* report() const { return nullptr; }
  /// It stays, for a device that does not come to an end.
  virtual void leave_memory() noexcept = 0;
};

}  // namespace tightwire::cuda::detail
