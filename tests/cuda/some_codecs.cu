// Kernels for a codec of one's own, as a user would make them, and for a few others.
#include "some_codecs.hpp"

#include <tightwire/codec/list.hpp>
#include <tightwire/cuda/coder.cuh>

#include "own_codec.hpp"

namespace tightwire::testing {

std::vector<std::shared_ptr<const cuda::Coder>> some_codecs() {
  using cuda::DeviceCoder;
  return {std::make_shared<DeviceCoder<OwnAffine>>(),
          std::make_shared<DeviceCoder<Int8>>(),
          std::make_shared<DeviceCoder<Int3>>(Rotated<Int3>{64, {}, 5}),
          std::make_shared<DeviceCoder<NvFp4>>(),
          std::make_shared<DeviceCoder<Lloyd<3>>>(),
          std::make_shared<DeviceCoder<Bf16>>()};
}

}  // namespace tightwire::testing
