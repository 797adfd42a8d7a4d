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

/// The NCCL that would be loaded here, or why there is none.
struct NcclState {
  std::string version;
  std::string error;
};

/// Empty where the nccl component was not built.
std::optional<NcclState> nccl_state();

}  // namespace tightwire::tool
