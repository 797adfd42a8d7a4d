#pragma once
#include <cstdlib>
#include <string_view>

#include <tightwire/detail/cpu_features.hpp>

namespace tightwire::host {

/// Instruction sets the loops are compiled for. All give the same bytes.
enum class Level { baseline = 0, avx2 = 1, avx512 = 2 };

constexpr std::string_view to_string(Level level) {
  return level == Level::avx512 ? "avx512" : level == Level::avx2 ? "avx2" : "baseline";
}

/// The best level this CPU has (x86-64-v3 is "avx2", x86-64-v4 is "avx512").
inline Level supported_level() noexcept {
  return detail::cpu_has_avx512() ? Level::avx512 : detail::cpu_has_avx2() ? Level::avx2 : Level::baseline;
}

/// The level in force: the best supported one, or a lower one asked for by TIGHTWIRE_CPU_LEVEL (baseline, avx2,
/// avx512), which helps to measure and to bisect and cannot change a result.
inline Level level() noexcept {
  const Level best = supported_level();
  const char* asked = std::getenv("TIGHTWIRE_CPU_LEVEL");
  if (asked == nullptr) return best;
  for (Level level : {Level::baseline, Level::avx2, Level::avx512})
    if (asked == to_string(level) && level < best) return level;
  return best;
}

}  // namespace tightwire::host
