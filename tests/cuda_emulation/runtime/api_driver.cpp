// What the driver has and the CUDA runtime has no name for.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>

#include "api.hpp"
#include "memory.hpp"
#include "stream.hpp"

using namespace cuda_emulation;

namespace {

CUresult stream_wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  auto* const number = reinterpret_cast<cuuint32_t*>(address);
  const auto found = find_allocation(number);
  if (!found || found->kind != MemoryKind::pinned || address % sizeof *number != 0 ||
      flags != CU_STREAM_WAIT_VALUE_GEQ) {
    report("cuStreamWaitValue32: only a number in pinned memory that has come so far is modelled");
    return CUDA_ERROR_INVALID_VALUE;
  }
  enqueue(stream, "a wait for a number in pinned memory",
          [=] { return static_cast<int>(std::atomic_ref(*number).load(std::memory_order_acquire) - value) >= 0; });
  return CUDA_SUCCESS;
}

CUresult current_context(CUcontext* context) {
  static int some_context = 0;
  *context = thread_has_context() ? reinterpret_cast<CUcontext>(&some_context) : nullptr;
  return CUDA_SUCCESS;
}

void* entry_point(const char* symbol) {
  if (std::strcmp(symbol, "cuStreamWaitValue32") == 0) return reinterpret_cast<void*>(&stream_wait_value);
  if (std::strcmp(symbol, "cuCtxGetCurrent") == 0) return reinterpret_cast<void*>(&current_context);
  return nullptr;
}

}  // namespace

extern "C" {

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult* status) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    enum cudaDriverEntryPointQueryResult* status) {
#endif
  *function = entry_point(symbol);
  if (status != nullptr)
    *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return noted(cudaSuccess);
}

}  // extern "C"
