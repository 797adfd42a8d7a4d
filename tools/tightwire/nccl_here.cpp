#include <tightwire/nccl.hpp>

#include "devices.hpp"

namespace tightwire::tool {

std::optional<NcclState> nccl_state() {
  try {
    return NcclState{nccl::version(), ""};
  } catch (const Error& error) {
    return NcclState{"", error.what()};
  }
}

}  // namespace tightwire::tool
