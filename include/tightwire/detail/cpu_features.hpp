#pragma once

namespace tightwire::detail {

#if defined(__x86_64__)
/// x86-64-v3 as the compilers define it, as far as our loops use it.
inline bool cpu_has_avx2() noexcept {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
/// x86-64-v4.
inline bool cpu_has_avx512() noexcept {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}
#else
inline bool cpu_has_avx2() noexcept { return false; }
inline bool cpu_has_avx512() noexcept { return false; }
#endif

}  // namespace tightwire::detail
