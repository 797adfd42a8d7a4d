#pragma once
#include <tightwire/cuda/coder.cuh>

#include "make.hpp"

namespace tightwire::cuda {

template <BlockCodec C>
std::shared_ptr<const Coder> make(const CodecSettings& settings) {
  const C codec = tightwire::detail::with_settings<C>(settings);
  if (settings.hadamard)
    return std::make_shared<DeviceCoder<C>>(Rotated<C>{*settings.hadamard, codec, settings.signs.value_or(0)});
  return std::make_shared<DeviceCoder<C>>(codec);
}

}  // namespace tightwire::cuda
