// The CUDA runtime's calls about devices and errors.
#include <cuda_runtime_api.h>

#include "api.hpp"
#include "stream.hpp"

namespace cuda_emulation {
namespace {
thread_local cudaError_t last_error = cudaSuccess;
}  // namespace

cudaError_t noted(cudaError_t error) {
  if (sticky_error() != cudaSuccess) error = sticky_error();
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}
cudaError_t refused(cudaError_t error, const std::string& why) {
  report(why);
  return noted(error);
}
cudaError_t taken_last_error(bool and_forget) {
  const cudaError_t error = sticky_error() != cudaSuccess ? sticky_error() : last_error;
  if (and_forget) last_error = cudaSuccess;
  return error;
}

}  // namespace cuda_emulation

using namespace cuda_emulation;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = options().devices;
  return noted(cudaSuccess);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return noted(cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= options().devices) return noted(cudaErrorInvalidDevice);
  set_current_device(device);
  return noted(cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return noted(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrComputeCapabilityMajor: *value = options().architecture / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = options().architecture % 10; break;
    default:
      return refused(cudaErrorInvalidValue,
                     "cudaDeviceGetAttribute: attribute " + std::to_string(attribute) + " is not modelled");
  }
  return noted(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize() { return noted(synchronize_device()); }
cudaError_t cudaGetLastError() { return taken_last_error(true); }
cudaError_t cudaPeekAtLastError() { return taken_last_error(false); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorMisalignedAddress: return "cudaErrorMisalignedAddress";
    case cudaErrorIllegalInstruction: return "cudaErrorIllegalInstruction";
    case cudaErrorLaunchTimeout: return "cudaErrorLaunchTimeout";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = cudaGetErrorName(error);
  if (error != cudaSuccess && !last_report().empty()) text += ": " + last_report();
  return text.c_str();
}

}  // extern "C"
