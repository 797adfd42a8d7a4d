// Kernels: how a module makes them known, and how they are launched.
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "api.hpp"
#include "device.hpp"
#include "engine.hpp"
#include "memory.hpp"
#include "stream.hpp"

using namespace cuda_emulation;

namespace {

struct Modules {
  std::mutex mutex;
  std::map<std::string, Kernel> kernels;              ///< as translated, by mangled name
  std::map<const void*, std::string> names;           ///< of the functions that host code calls
  std::map<const void*, std::string> variables;       ///< of the variables that host code names
  std::map<const void*, std::size_t> dynamic_shared;  ///< asked for with cudaFuncSetAttribute
  std::set<const void*> loaded;                       ///< asked about, as a device loads a kernel when it is needed
  std::map<std::string, std::uint64_t> launches;      ///< by mangled name
};
Modules& modules() {
  static Modules modules;
  return modules;
}
struct CallConfiguration {
  dim3 grid, block;
  std::size_t shared;
  void* stream;
};
thread_local CallConfiguration call_configuration;

constexpr std::size_t kMostSharedByDefault = 48 * 1024, kMostShared = 227 * 1024;

const Kernel* find_kernel(const void* function) {
  const std::lock_guard lock(modules().mutex);
  const auto name = modules().names.find(function);
  if (name == modules().names.end()) return nullptr;
  const auto kernel = modules().kernels.find(name->second);
  return kernel == modules().kernels.end() ? nullptr : &kernel->second;
}

/// Why a device would not start the kernel; empty if it would.
std::string objection(const Kernel& kernel, const void* function, dim3 grid, dim3 block, std::size_t shared) {
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64) return std::to_string(threads) + " threads in a block";
  if (kernel.most_threads != 0 && threads > kernel.most_threads)
    return std::to_string(threads) + " threads, more than its __launch_bounds__ of " +
           std::to_string(kernel.most_threads);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return "a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " + std::to_string(grid.z);
  const std::lock_guard lock(modules().mutex);
  if (options().only_loaded_kernels && !modules().loaded.contains(function))
    return "loading may wait for what is under way";
  const auto asked = modules().dynamic_shared.find(function);
  const std::size_t most =
      asked == modules().dynamic_shared.end() ? kMostSharedByDefault - kernel.shared_bytes : asked->second;
  if (shared > most || shared + kernel.shared_bytes > kMostShared)
    return std::to_string(shared) + " bytes of dynamic shared memory, of which it may have " + std::to_string(most);
  return "";
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                   cudaStream_t stream) {
  const Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) return refused(cudaErrorInvalidDeviceFunction, "a kernel that was not translated");
  {
    const std::lock_guard lock(modules().mutex);
    ++modules().launches[kernel->name];
  }
  const std::string why = objection(*kernel, function, grid, block, shared);
  if (!why.empty()) return refused(cudaErrorInvalidConfiguration, std::string(kernel->name) + ": " + why);
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < kernel->parameters; ++i)
    bytes = kernel->parameter_offsets[i] + std::size_t{kernel->parameter_sizes[i]};
  // Doubles, so that every parameter is aligned.
  auto parameters = std::make_shared<std::vector<double>>(bytes / sizeof(double) + 1);
  auto* const memory = reinterpret_cast<std::byte*>(parameters->data());
  for (std::uint32_t i = 0; i < kernel->parameters; ++i)
    std::memcpy(memory + kernel->parameter_offsets[i], arguments[i], kernel->parameter_sizes[i]);
  Launch launch{.kernel = kernel->name,
                .grid = {grid.x, grid.y, grid.z},
                .block = {block.x, block.y, block.z},
                .declared_shared = kernel->shared_bytes,
                .dynamic_shared = static_cast<std::uint32_t>(shared),
                .ordered = kernel->ordered,
                .body = [=] { kernel->body(reinterpret_cast<const std::byte*>(parameters->data())); },
                .parameters = {reinterpret_cast<std::uintptr_t>(memory),
                               reinterpret_cast<std::uintptr_t>(memory) + bytes, nullptr}};
  enqueue(stream, std::string("kernel ") + kernel->name, [launch = std::move(launch)] {
    Engine::of_thread().run(launch);
    return true;
  });
  return noted(cudaSuccess);
}

}  // namespace

namespace cuda_emulation {

void add_kernel(const Kernel& kernel) {
  const std::lock_guard lock(modules().mutex);
  modules().kernels[kernel.name] = kernel;
}
std::uint64_t launches(const std::string& name) {
  const std::lock_guard lock(modules().mutex);
  std::uint64_t sum = 0;
  for (const auto& [mangled, count] : modules().launches) sum += mangled.find(name) != std::string::npos ? count : 0;
  return sum;
}

}  // namespace cuda_emulation

extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  return launch(function, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaFuncSetAttribute(const void* function, enum cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
    return refused(cudaErrorInvalidValue, "cudaFuncSetAttribute: this attribute is not modelled");
  if (value < 0 || static_cast<std::size_t>(value) > kMostShared) return noted(cudaErrorInvalidValue);
  const std::lock_guard lock(modules().mutex);
  std::size_t& most = modules().dynamic_shared[function];
  // CUDA allows it. The launch of another thread, which raised it, would be refused.
  if (static_cast<std::size_t>(value) < most)
    return refused(cudaErrorInvalidValue, "the most shared memory of a kernel is lowered");
  most = static_cast<std::size_t>(value);
  return noted(cudaSuccess);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void* function) {
  const Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) return refused(cudaErrorInvalidDeviceFunction, "a kernel that was not translated");
  *attributes = {};
  attributes->sharedSizeBytes = kernel->shared_bytes;
  attributes->maxThreadsPerBlock = kernel->most_threads != 0 ? static_cast<int>(kernel->most_threads) : 1024;
  const std::lock_guard lock(modules().mutex);
  if (options().only_loaded_kernels && !modules().loaded.contains(function))
    return refused(cudaErrorInvalidDeviceFunction,
                   std::string(kernel->name) + ": loading may wait for what is under way");
  modules().loaded.insert(function);
  return noted(cudaSuccess);
}
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  std::string name;
  {
    const std::lock_guard lock(modules().mutex);
    const auto found = modules().variables.find(symbol);
    if (found != modules().variables.end()) name = found->second;
  }
  *address = find_variable(name);
  return noted(*address != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}

// What nvcc's host code calls. Modules are part of the program, so that there is nothing to load.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::lock_guard lock(modules().mutex);
  modules().names[function] = name;
}
void __cudaRegisterVar(void**, char* variable, char*, const char* name, int, std::size_t, int, int) {
  const std::lock_guard lock(modules().mutex);
  modules().variables[variable] = name;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
  return launch(static_cast<const void*>(kernel), grid, block, arguments, shared, stream);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, void* stream) {
  call_configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = call_configuration.grid;
  *block = call_configuration.block;
  *shared = call_configuration.shared;
  *static_cast<void**>(stream) = call_configuration.stream;
  return cudaSuccess;
}

}  // extern "C"
