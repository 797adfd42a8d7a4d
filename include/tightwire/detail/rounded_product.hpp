#pragma once

namespace tightwire::detail {

/// a * b, rounded here and now: no compiler may contract it with what it is added to, as GCC does where a program is
/// built for FMA and does not forbid it, and so give other bits than the compiled library. For code of the host.
inline float rounded_product(float a, float b) {
  float product = a * b;
  asm("" : "+m"(product));
  return product;
}

}  // namespace tightwire::detail
