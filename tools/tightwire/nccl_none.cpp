#include "devices.hpp"

namespace tightwire::tool {

std::optional<NcclState> nccl_state() { return std::nullopt; }

}  // namespace tightwire::tool
