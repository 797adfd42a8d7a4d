#pragma once
#include <cstdint>
#include <span>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "data.hpp"

namespace quickstart {

/// Two convolutions and two linear layers, 421,642 parameters in 8 tensors.
struct Network : torch::nn::Module {
  /// The same seed gives the same weights, whatever else draws random numbers.
  explicit Network(std::uint64_t seed);

  /// [image][1][28][28] -> [image][10], not normalised.
  torch::Tensor forward(torch::Tensor images);

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear hidden, output;
};

/// One thread per rank and deterministic algorithms, so that ranks do not take each other's cores and runs can be
/// repeated. For the calling thread.
void use_one_deterministic_thread();

struct Batch {
  torch::Tensor images;   ///< fp32 [image][1][28][28], mean 0 and deviation 1 over the data set
  torch::Tensor classes;  ///< int64 [image]
};
Batch make_batch(const LabelledImages& from, std::span<const std::size_t> indices);

/// Of the images [begin, end), how many the network puts into the right class.
std::uint64_t count_correct(Network& network, const LabelledImages& images, std::size_t begin, std::size_t end);

/// Of all bytes of all parameters.
std::uint64_t hash_parameters(const Network& network);

}  // namespace quickstart
