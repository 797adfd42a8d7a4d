#pragma once
#include <string>
#include <string_view>

#include <cuda_runtime_api.h>

#include <tightwire/error.hpp>

namespace tightwire::cuda::detail {

/// Throws Error(device) that names the call and what it was for, unless it succeeded.
inline void check(cudaError_t status, const char* call, const char* verb, std::string_view codec) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would have it again
  throw Error(status == cudaErrorMemoryAllocation ? Errc::no_memory : Errc::device,
              std::string(call) + " for " + verb + " with " + std::string(codec) + ": " + cudaGetErrorName(status) +
                  " (" + std::to_string(static_cast<int>(status)) + "): " + cudaGetErrorString(status));
}

}  // namespace tightwire::cuda::detail
