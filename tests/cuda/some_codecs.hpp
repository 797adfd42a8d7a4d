#pragma once
#include <memory>
#include <vector>

#include <tightwire/cuda.hpp>

namespace tightwire::testing {

/// A codec of one's own, and a few of the library's, made from their types.
std::vector<std::shared_ptr<const cuda::Coder>> some_codecs();

}  // namespace tightwire::testing
