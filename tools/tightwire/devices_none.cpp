#include "devices.hpp"

namespace tightwire::tool {

std::optional<CudaState> cuda_state() { return std::nullopt; }

}  // namespace tightwire::tool
