#pragma once
// For tests that look into the emulation, or plant faults in it.
#include "cuda_emulation/nccl_double.hpp"
#include "cuda_emulation/runtime/options.hpp"
#include "cuda_emulation/schedules.hpp"
#include "open.hpp"

namespace tightwire::testing {

/// What follows runs in that one of `kSchedules`.
inline void use(std::size_t schedule) { cuda_emulation::use(cuda_emulation::kSchedules[schedule]); }

}  // namespace tightwire::testing
