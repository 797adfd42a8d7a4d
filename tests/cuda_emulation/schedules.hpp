#pragma once
#include <cstdint>
#include <string_view>

#include "runtime/options.hpp"

namespace cuda_emulation {

/// An order in which blocks, warps, lanes and streams take their turns.
struct Schedule {
  std::string_view name;
  bool reverse;
  std::uint64_t seed;
};
/// Those that every kernel is to pass: what one of them hides, another shows.
inline constexpr Schedule kSchedules[] = {
    {"in order", false, 0}, {"in reverse", true, 0}, {"at random, 1", false, 1}, {"at random, 2", false, 2}};

inline void use(const Schedule& schedule) {
  options().reverse = schedule.reverse;
  options().seed = schedule.seed;
}

}  // namespace cuda_emulation
