#pragma once
// What the entry points of the CUDA runtime have in common.
#include <driver_types.h>

#include "options.hpp"

namespace cuda_emulation {

/// Notes the error of a call for cudaGetLastError; a kernel's that failed comes before it.
cudaError_t noted(cudaError_t error);
/// The same, with a report that says why.
cudaError_t refused(cudaError_t error, const std::string& why);
/// Whether a call that may not be made beside a capture, unless the thread says that it may, is made beside one.
bool spoils_capture();
cudaError_t capture_spoiled(const char* call);
cudaError_t taken_last_error(bool and_forget);

}  // namespace cuda_emulation
