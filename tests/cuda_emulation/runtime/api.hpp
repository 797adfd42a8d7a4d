#pragma once
// What the entry points of the CUDA runtime have in common.
#include <driver_types.h>

#include "options.hpp"

namespace cuda_emulation {

/// Notes the error of a call for cudaGetLastError; a kernel's that failed comes before it.
cudaError_t noted(cudaError_t error);
/// The same, with a report that says why.
cudaError_t refused(cudaError_t error, const std::string& why);
cudaError_t taken_last_error(bool and_forget);
/// What a call returns that may not be made while a stream is captured, unless the thread has said that it may.
cudaError_t unless_captured(cudaError_t error);

}  // namespace cuda_emulation
