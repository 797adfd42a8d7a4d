#pragma once
#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tightwire::detail {

/// Default IEEE arithmetic (to nearest even, subnormals kept) for as long as it lives, then what was there before. A
/// trainer that sets flush-to-zero on some ranks, or another rounding, must not change our bits.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  // fegetenv and fesetenv take 150 ns, for the sake of the x87 unit, which nothing of ours uses.
  FloatEnvironment() noexcept : before_(_mm_getcsr()) {
    if ((before_ & ~kRaised) != kDefault) set(kDefault);
  }
  ~FloatEnvironment() {
    if (_mm_getcsr() != before_) set(before_);
  }
#else
  FloatEnvironment() noexcept {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&before_); }
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1F80;  ///< to nearest, subnormals kept, no exception traps
  static constexpr unsigned kRaised = 0x003F;   ///< flags of exceptions met so far

  /// The fences keep the compiler from moving arithmetic across the change of mode.
  static void set(unsigned mode) noexcept {
    asm volatile("" ::: "memory");
    _mm_setcsr(mode);
    asm volatile("" ::: "memory");
  }

  unsigned before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace tightwire::detail
