#pragma once
#include <optional>
#include <string>

namespace tightwire::tool {

/// The UCX this copy is linked with and the transports it would use here.
struct UcxState {
  std::string version;
  std::string transports;
  bool knows_cuda_memory = false;
};

/// Empty where the ucx component was not built. Throws Error when UCX cannot be asked.
std::optional<UcxState> ucx_state();

}  // namespace tightwire::tool
