#include "transports.hpp"

namespace tightwire::tool {

std::optional<UcxState> ucx_state() { return std::nullopt; }

}  // namespace tightwire::tool
