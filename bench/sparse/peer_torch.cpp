#include "peer.hpp"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

namespace bench {

std::optional<std::function<void()>> torch_topk(const float* x, std::size_t count, std::size_t k) {
  at::set_num_threads(1);
  const at::Tensor tensor =
      at::from_blob(const_cast<float*>(x), {static_cast<std::int64_t>(count)}, at::TensorOptions(at::kFloat));
  return [tensor, k] { at::topk(tensor.abs(), static_cast<std::int64_t>(k), -1, true, false); };
}

}  // namespace bench
