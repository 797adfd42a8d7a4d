#pragma once
#include <cstdint>

#include <tightwire/cuda.hpp>

namespace tightwire::cuda::detail {

/// Lets a stream wait until a number in pinned memory has come to `value`, counted in circles. No kernel waits, and no
/// thread of the host. Throws Error(device) that names the rank and the call, Error(unsupported) where the driver has
/// no such call.
void wait_for_value(Stream stream, const std::uint32_t* number, std::uint32_t value, int rank);

/// Throws as wait_for_value would.
void require_waits_for_values(int rank);

}  // namespace tightwire::cuda::detail
