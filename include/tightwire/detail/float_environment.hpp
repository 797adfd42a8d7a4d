#pragma once
#include <cfenv>

namespace tightwire::detail {

/// Default IEEE arithmetic (to nearest even, subnormals kept) for as long as it lives, then what was there before. A
/// trainer that sets flush-to-zero on some ranks, or another rounding, must not change our bits.
class FloatEnvironment {
 public:
  FloatEnvironment() noexcept {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
  ~FloatEnvironment() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

}  // namespace tightwire::detail
