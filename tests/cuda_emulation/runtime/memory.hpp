#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <driver_types.h>

namespace cuda_emulation {

enum class MemoryKind { device, pinned };

/// Memory that kernels may touch. `written` has a byte for each of its bytes, not 0 where something was written; null
/// where that is not watched.
struct Allocation {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint8_t* written = nullptr;
  MemoryKind kind = MemoryKind::device;
  std::uint64_t number = 0;
  bool freed = false;
  int device = 0;
};

/// Null if there is no memory. New memory is filled with NaNs.
void* allocate(std::size_t bytes, MemoryKind kind);
/// False if nothing begins there. Its addresses are never given out again.
bool release(void* memory);
/// A variable of a module, which is there as long as the program.
void add_variable(const char* name, void* memory, std::size_t bytes);
void* find_variable(const std::string& name);

std::optional<Allocation> find_allocation(const void* at);
/// All memory that is there, by address.
std::vector<Allocation> allocations();
/// "16 bytes past the end of device allocation #3 of 1024 bytes".
std::string describe(std::uintptr_t address);

void mark_written(const void* at, std::size_t bytes);
bool is_written(const void* at, std::size_t bytes);
/// Copies what is known of a source to a destination.
void copy_marks(const void* to, const void* from, std::size_t bytes);

/// While one of these lives, the calling thread plays the device and may touch its memory.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace cuda_emulation
