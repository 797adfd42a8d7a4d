#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tightwire::detail {

/// While it lives, the calling thread's floating point unit takes subnormals for zero, as input (DAZ) and as result
/// (FTZ): the state a program is in after it loads a library built with -ffast-math. Does nothing on other CPUs.
class FlushToZero {
 public:
#if defined(__x86_64__)
  static constexpr bool kAvailable = true;
  FlushToZero() noexcept : saved_(_mm_getcsr()) { set(saved_ | kFlushResults | kFlushInputs); }
  ~FlushToZero() { set(saved_); }
#else
  static constexpr bool kAvailable = false;
  FlushToZero() noexcept {}
  ~FlushToZero() {}
#endif
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr std::uint32_t kFlushResults = 0x8000;
  static constexpr std::uint32_t kFlushInputs = 0x0040;

  /// The fences keep the compiler from moving arithmetic across the change of mode.
  static void set(std::uint32_t mode) noexcept {
    asm volatile("" ::: "memory");
    _mm_setcsr(mode);
    asm volatile("" ::: "memory");
  }

  std::uint32_t saved_;
#endif
};

}  // namespace tightwire::detail
