#pragma once
#include <optional>
#include <string>

namespace tightwire::tool {

/// The devices that CUDA knows here.
struct CudaState {
  int devices = 0;
  std::string note;
};

/// Empty where the cuda component was not built.
std::optional<CudaState> cuda_state();

}  // namespace tightwire::tool
