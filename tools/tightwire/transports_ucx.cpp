#include <tightwire/ucx.hpp>

#include "transports.hpp"

namespace tightwire::tool {

std::optional<UcxState> ucx_state() {
  return UcxState{ucx::version(), ucx::available_transports(), ucx::knows_cuda_memory()};
}

}  // namespace tightwire::tool
