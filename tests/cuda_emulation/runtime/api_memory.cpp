// The CUDA runtime's calls about memory.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <vector>

#include "api.hpp"
#include "memory.hpp"
#include "stream.hpp"

using namespace cuda_emulation;

namespace {

cudaError_t allocated(void** memory, std::size_t bytes, MemoryKind kind) {
  if (spoils_capture()) return capture_spoiled("taking memory");
  *memory = bytes != 0 ? allocate(bytes, kind) : nullptr;
  return noted(*memory != nullptr || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}

/// A fault if a copy runs past the end of memory that is known.
bool fits(const void* at, std::size_t bytes, const char* what) {
  const auto found = find_allocation(at);
  if (!found || reinterpret_cast<std::uintptr_t>(at) + bytes <= found->end) return true;
  report(std::string(what) + " of " + std::to_string(bytes) + " bytes runs past the end: it begins " +
         describe(reinterpret_cast<std::uintptr_t>(at)));
  set_sticky_error(cudaErrorInvalidValue);
  return false;
}
void copy(void* to, const void* from, std::size_t bytes) {
  if (!fits(to, bytes, "a copy") || !fits(from, bytes, "a copy")) return;
  const DeviceAccess access;
  std::memmove(to, from, bytes);
  copy_marks(to, from, bytes);
}
bool on_device(const void* at) {
  const auto found = find_allocation(at);
  return found && found->kind == MemoryKind::device;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocated(memory, bytes, MemoryKind::device); }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return allocated(memory, bytes, MemoryKind::pinned); }
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) { return cudaMallocHost(memory, bytes); }
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return noted(cudaSuccess);
  if (spoils_capture()) return capture_spoiled("cudaFree");
  synchronize_device();
  return noted(release(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* at) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  if (const auto found = find_allocation(at)) {
    attributes->type = found->kind == MemoryKind::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = found->device;
  }
  return noted(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return noted(cudaSuccess);
  if (!on_device(to) || !on_device(from)) count(Call::copy);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (on_device(to) != to_device || on_device(from) != from_device))
    return refused(cudaErrorInvalidValue, "cudaMemcpyAsync: the pointers are not what the direction says");
  if (!find_allocation(from)) {  // pageable memory is staged before the call returns
    const auto* const begin = static_cast<const std::byte*>(from);
    auto staged = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
    enqueue(stream, "a copy", [=] {
      copy(to, staged->data(), bytes);
      return true;
    });
    return noted(cudaSuccess);
  }
  enqueue(stream, "a copy", [=] {
    if (is_held(bytes)) return false;
    copy(to, from, bytes);
    return true;
  });
  return noted(find_allocation(to) ? cudaSuccess : synchronize(stream));  // pageable: returns when it is there
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, enum cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : noted(synchronize(nullptr));
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  if (options().fail_memset) return noted(cudaErrorInvalidValue);
  if (stream == nullptr && captures_beside_null_stream()) return noted(cudaErrorStreamCaptureImplicit);
  enqueue(stream, "a memset", [=] {
    if (!fits(at, bytes, "a memset")) return true;
    const DeviceAccess access;
    std::memset(at, value, bytes);
    mark_written(at, bytes);
    return true;
  });
  return noted(cudaSuccess);
}
cudaError_t cudaMemset(void* at, int value, std::size_t bytes) { return cudaMemsetAsync(at, value, bytes, nullptr); }

}  // extern "C"
