#pragma once
#include <cstdint>
#include <string>

#include <driver_types.h>

namespace cuda_emulation {

/// How kernels run from now on. Set between launches, with no work pending.
struct Options {
  bool reverse = false;             ///< last block, warp and lane first
  std::uint64_t seed = 0;           ///< not 0: blocks, warps, lanes and streams in an order drawn from it
  bool check_initialized = true;    ///< a kernel that reads memory nobody wrote ends with an error
  bool guard_device_memory = true;  ///< host code that touches device memory is stopped
  int devices = 1;
  int architecture = 90;
  int patience_ms = 3000;   ///< how long a wait may see no progress before it is called a deadlock
  std::uint64_t queue = 0;  ///< not 0: how much a stream takes before calls that put work on it wait, as on a device
  bool only_loaded_kernels = false;  ///< from now on none is loaded, by a launch or by asking about it
  bool fail_memset = false;          ///< cudaMemset and cudaMemsetAsync return an error
};
Options& options();

/// What the last fault was, in words; empty if there was none.
std::string last_report();
void report(const std::string& text);

/// The error of a kernel that failed: as on a device, every call returns it from then on.
cudaError_t sticky_error();
void set_sticky_error(cudaError_t error);

/// What the program did since it started.
struct Calls {
  std::uint64_t allocations = 0;  ///< of memory, streams and events
  std::uint64_t copies = 0;       ///< one side or both of them the host
  std::uint64_t waits = 0;        ///< of the host, for a stream, an event or the device
};
Calls calls();
/// Launches of the kernels of which the name, as the linker has it, holds this.
std::uint64_t launches(const std::string& name);
/// Copies of so many bytes stand still, until another number is given, 0 for none.
void hold_copies(std::size_t bytes);
bool is_held(std::size_t bytes);
enum class Call { allocation, copy, wait };
void count(Call call);

/// Forgets pending work and errors, as a new process would. Memory stays.
void reset();

}  // namespace cuda_emulation
