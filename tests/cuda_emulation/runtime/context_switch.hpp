#pragma once
// Fibers of the calling thread: a switch costs nanoseconds, where that of ucontext goes through the kernel.
#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#error "the emulation has a context switch for x86-64 only"
#endif

namespace cuda_emulation {

extern "C" void cuda_emulation_switch(void** saved_stack, void* next_stack);

/// A stack on which `entry` begins at the first switch to it. It must not return.
inline void* prepared_stack(std::byte* end, void (*entry)()) {
  auto* top = reinterpret_cast<std::uintptr_t*>(reinterpret_cast<std::uintptr_t>(end) & ~std::uintptr_t{15});
  *--top = 0;  // where `entry` would return to; aligns the stack as a call does
  *--top = reinterpret_cast<std::uintptr_t>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = 0;  // the registers that a call preserves
  return top;
}

}  // namespace cuda_emulation
