#pragma once
#include <cstddef>
#include <functional>
#include <optional>

namespace bench {

/// torch.topk of the magnitudes of `count` floats, on one thread, unsorted, as compression hooks call it. Nothing
/// without libtorch.
std::optional<std::function<void()>> torch_topk(const float* x, std::size_t count, std::size_t k);

}  // namespace bench
