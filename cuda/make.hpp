#pragma once
#include <memory>

#include <tightwire/codec/list.hpp>
#include <tightwire/codec/rotated.hpp>
#include <tightwire/codec/settings.hpp>
#include <tightwire/cuda.hpp>

namespace tightwire::cuda {

/// A built-in codec on a device. Instantiated in the .cu files beside this one.
template <BlockCodec C>
std::shared_ptr<const Coder> make(const CodecSettings& settings);

}  // namespace tightwire::cuda
