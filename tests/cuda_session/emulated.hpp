#pragma once
// For tests that look into the emulation, or plant faults in it.
#include "cuda_emulation/nccl_double.hpp"
#include "cuda_emulation/runtime/options.hpp"
#include "cuda_emulation/schedules.hpp"
#include "open.hpp"
