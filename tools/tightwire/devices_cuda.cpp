#include <tightwire/cuda.hpp>

#include "devices.hpp"

namespace tightwire::tool {

std::optional<CudaState> cuda_state() {
  const cuda::Devices devices = cuda::devices();
  return CudaState{devices.count, devices.note};
}

}  // namespace tightwire::tool
