// A call of the driver's that the CUDA runtime has no name for.
#include "stream_wait.hpp"

#include <cuda.h>

#include "resources.hpp"

namespace tightwire::cuda::detail {
namespace {

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
constexpr const char* kCall = "cuStreamWaitValue32";

/// Asked of the runtime, so that a program starts where there is no driver.
WaitValue wait_value(int rank) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  require(cudaGetDriverEntryPointByVersion(kCall, &found, 12000, cudaEnableDefault, &state),
          "cudaGetDriverEntryPointByVersion", rank);
#else
  require(cudaGetDriverEntryPoint(kCall, &found, cudaEnableDefault, &state), "cudaGetDriverEntryPoint", rank);
#endif
  if (state != cudaDriverEntryPointSuccess || found == nullptr)
    throw Error(Errc::unsupported, "rank " + std::to_string(rank) + ": the driver has no " + kCall);
  return reinterpret_cast<WaitValue>(found);
}

}  // namespace

void require_waits_for_values(int rank) { wait_value(rank); }

void wait_for_value(Stream stream, const std::uint32_t* number, std::uint32_t value, int rank) {
  static const WaitValue call = wait_value(rank);
  if (const CUresult result = call(stream, reinterpret_cast<CUdeviceptr>(number), value, CU_STREAM_WAIT_VALUE_GEQ);
      result != CUDA_SUCCESS)
    throw Error(Errc::device, "rank " + std::to_string(rank) + ": " + kCall + ": error " +
                                  std::to_string(static_cast<int>(result)) + " of the driver");
}

}  // namespace tightwire::cuda::detail
