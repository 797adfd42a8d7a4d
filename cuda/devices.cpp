// What devices there are. Plain C++: no kernel is here.
#include <cuda_runtime_api.h>

#include <tightwire/cuda.hpp>

namespace tightwire::cuda {

Devices devices() {
  Devices found;
  int count = 0;  // where there is no driver, the call leaves it untouched
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();  // or the next call would have it again
    found.note = std::string("no usable device: cudaGetDeviceCount says ") + cudaGetErrorString(status);
    return found;
  }
  found.count = count;
  found.note = count == 0 ? "no device" : std::to_string(count) + (count == 1 ? " device" : " devices");
  for (int device = 0; device < count; ++device) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess)
      found.note += ", sm_" + std::to_string(major) + std::to_string(minor);
  }
  return found;
}

}  // namespace tightwire::cuda
