#pragma once
// How kernels with one argument are loaded and put on a stream.
#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>

#include <tightwire/cuda.hpp>
#include <tightwire/cuda/error.cuh>

namespace tightwire::cuda::detail {

/// What kernels are about, for errors.
struct Subject {
  const char* what;
  int rank;
};
struct LaunchSize {
  std::uint64_t blocks;
  unsigned threads;  ///< in a block
};

/// Throws as the other `check` does.
inline void check(cudaError_t status, const char* call, const char* verb, const Subject& of) {
  if (status == cudaSuccess) return;
  check(status, call, verb, std::string(of.what) + " on rank " + std::to_string(of.rank));
}

/// Nothing where there are no blocks.
template <class Job>
void launch(const char* verb, void (*kernel)(Job), Job job, LaunchSize size, const Subject& of, Stream stream) {
  if (size.blocks == 0) return;
  void* arguments[] = {&job};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(size.blocks)),
                         dim3(size.threads), arguments, 0, stream),
        "cudaLaunchKernel", verb, of);
}

/// So that it is not loaded by its first launch, while something runs.
template <class Job>
void load(void (*kernel)(Job), const Subject& of) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), "cudaFuncGetAttributes", "loading",
        of);
}

}  // namespace tightwire::cuda::detail
