#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <vector>

#include <dlfcn.h>

#include <ATen/CPUGeneratorImpl.h>
#include <tightwire/agreement.hpp>
#include <tightwire/core_codecs.hpp>

namespace quickstart {

Network::Network(std::uint64_t seed)
    : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)))),
      conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)))),
      hidden(register_module("hidden", torch::nn::Linear(64 * 7 * 7, 128))),
      output(register_module("output", torch::nn::Linear(128, static_cast<std::int64_t>(kClasses)))) {
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (torch::Tensor& parameter : parameters()) {
    if (parameter.dim() == 1) {
      parameter.zero_();
      continue;
    }
    const auto inputs = static_cast<double>(parameter[0].numel());
    parameter.normal_(0, std::sqrt(2.0 / inputs), generator);
  }
}

torch::Tensor Network::forward(torch::Tensor images) {
  torch::Tensor x = torch::max_pool2d(torch::relu(conv1(images)), 2);
  x = torch::max_pool2d(torch::relu(conv2(x)), 2);
  x = torch::relu(hidden(x.flatten(1)));
  return output(x);
}

void use_one_deterministic_thread() {
  torch::set_num_threads(1);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // OpenBLAS has a pool of its own, which libtorch does not limit and which may not be there.
  if (void* limit = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(limit)(1);
}

Batch make_batch(const LabelledImages& from, std::span<const std::size_t> indices) {
  constexpr float kMean = 0.2860f * 255, kDeviation = 0.3530f * 255;
  const auto count = static_cast<std::int64_t>(indices.size());
  constexpr auto kSide = static_cast<std::int64_t>(kImageSide);
  Batch batch{torch::empty({count, 1, kSide, kSide}), torch::empty({count}, torch::kInt64)};
  auto* pixel = batch.images.data_ptr<float>();
  auto* class_of = batch.classes.data_ptr<std::int64_t>();
  for (const std::size_t index : indices) {
    for (const std::uint8_t grey : from.image(index)) *pixel++ = (static_cast<float>(grey) - kMean) / kDeviation;
    *class_of++ = from.labels[index];
  }
  return batch;
}

std::uint64_t count_correct(Network& network, const LabelledImages& images, std::size_t begin, std::size_t end) {
  const torch::NoGradGuard no_grad;
  std::vector<std::size_t> indices(end - begin);
  std::iota(indices.begin(), indices.end(), begin);
  std::uint64_t correct = 0;
  for (std::size_t at = 0; at < indices.size(); at += 100) {
    const Batch batch =
        make_batch(images, std::span(indices).subspan(at, std::min<std::size_t>(100, indices.size() - at)));
    const torch::Tensor right = network.forward(batch.images).argmax(1) == batch.classes;
    correct += static_cast<std::uint64_t>(right.sum().item<std::int64_t>());
  }
  return correct;
}

std::uint64_t hash_parameters(const Network& network) {
  std::string bytes;
  for (const torch::Tensor& parameter : network.parameters())
    bytes.append(static_cast<const char*>(parameter.data_ptr()), parameter.nbytes());
  return tightwire::fingerprint(bytes);
}

}  // namespace quickstart
