#pragma once
// What the C++ that the translator makes of a kernel's PTX calls while it runs: one fiber per CUDA thread.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <driver_types.h>

namespace cuda_emulation {

struct Index {
  std::uint32_t x, y, z;
};
/// Of the thread that runs.
extern thread_local constinit Index thread_index, block_index, block_size, grid_size;
extern thread_local constinit std::uint32_t lane, warp;
/// Shared memory of the block: what kernels declare, then what a launch asks for. `shared_written`: see Allocation.
extern thread_local constinit std::byte* shared_memory;
extern thread_local constinit std::uint8_t* shared_written;
extern thread_local constinit std::uint32_t shared_bytes, dynamic_shared_at;

enum class Shuffle : std::uint8_t { up, down, butterfly, index };
enum class Vote : std::uint8_t { ballot, any, all, uniform };
enum class Reduce : std::uint8_t { add, min_signed, max_signed, min_unsigned, max_unsigned, bit_and, bit_or, bit_xor };
enum class BlockVote : std::uint8_t { count, all, any };

/// As PTX has it: `bounds` is the clamp, and the segment mask from bit 8 on. `*in_range`: the source was.
std::uint32_t shuffle(Shuffle how, std::uint32_t value, std::uint32_t by, std::uint32_t bounds, std::uint32_t mask,
                      bool* in_range);
std::uint32_t vote(Vote how, bool yes, std::uint32_t mask);
std::uint32_t reduce(Reduce how, std::uint32_t value, std::uint32_t mask);
std::uint32_t match_any(std::uint64_t value, std::uint32_t mask);
void sync_warp(std::uint32_t mask);
void sync_block();
std::uint32_t sync_block_voting(BlockVote how, bool yes);
/// Only the caller: legal, and the answer that helps least.
inline std::uint32_t active_mask() { return 1u << lane; }
/// Lets other threads of the block go on, as a thread that polls must.
void yield();
/// Ends the kernel with an error. `bytes` 0: there is no address.
[[noreturn]] void fault(cudaError_t error, const char* what, std::uintptr_t address = 0, std::size_t bytes = 0);

/// The memory that was touched last, which is most often the next too.
struct Range {
  std::uintptr_t begin, end;
  std::uint8_t* written;
};
extern thread_local constinit Range last_range;
/// The range in which all bytes lie, or a fault.
Range find_range(std::uintptr_t address, std::size_t bytes, bool writes);

inline void check_marks(std::uint8_t* marks, std::uintptr_t address, std::size_t bytes, bool writes, const char* what) {
  if (marks == nullptr) return;
  if (writes) {
    std::memset(marks, 1, bytes);
    return;
  }
  std::uint8_t all = 1;
  for (std::size_t i = 0; i < bytes; ++i) all &= marks[i];
  if (all == 0) [[unlikely]]
    fault(cudaErrorIllegalAddress, what, address, bytes);
}
/// Generic addresses: global memory, shared memory through a pointer, a thread's own memory.
inline std::byte* checked(std::uint64_t address, std::size_t bytes, bool writes) {
  if ((address & (bytes - 1)) != 0) [[unlikely]]
    fault(cudaErrorMisalignedAddress, "misaligned access", address, bytes);
  Range range = last_range;
  if (address < range.begin || address + bytes > range.end) [[unlikely]]
    range = find_range(address, bytes, writes);
  check_marks(range.written != nullptr ? range.written + (address - range.begin) : nullptr, address, bytes, writes,
              "read of memory that nobody wrote");
  return reinterpret_cast<std::byte*>(address);
}
inline std::byte* checked_shared(std::uint32_t at, std::size_t bytes, bool writes) {
  if ((at & (bytes - 1)) != 0) [[unlikely]]
    fault(cudaErrorMisalignedAddress, "misaligned access of shared memory", at, bytes);
  if (std::uint64_t{at} + bytes > shared_bytes) [[unlikely]]
    fault(cudaErrorIllegalAddress, "access beyond shared memory", at, bytes);
  check_marks(shared_written != nullptr ? shared_written + at : nullptr, at, bytes, writes,
              "read of shared memory that nobody wrote");
  return shared_memory + at;
}

/// A kernel of a module. `parameters` of `body`: as PTX lays them out.
struct Kernel {
  const char* name;
  void (*body)(const std::byte* parameters);
  const std::uint32_t* parameter_offsets;
  const std::uint32_t* parameter_sizes;
  std::uint32_t parameters;
  std::uint32_t shared_bytes;  ///< declared in the kernel
  std::uint32_t most_threads;  ///< by __launch_bounds__; 0: not said
  bool ordered;                ///< blocks wait for those before them
};
void add_kernel(const Kernel& kernel);

}  // namespace cuda_emulation
