#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "data.hpp"
#include "task.hpp"

namespace convergence::fashion {
namespace {

constexpr std::int64_t kSide = 28, kBatch = 32, kTestImages = 2000;

struct Images {
  torch::Tensor pixels, classes;  // fp32 [image][1][28][28], int64 [image]
};

Images convert(const quickstart::LabelledImages& from, std::int64_t count) {
  constexpr float kMean = 0.2860f * 255, kDeviation = 0.3530f * 255;
  Images images{torch::empty({count, 1, kSide, kSide}), torch::empty({count}, torch::kInt64)};
  float* pixel = images.pixels.data_ptr<float>();
  for (std::int64_t i = 0; i < count * kSide * kSide; ++i)
    pixel[i] = (static_cast<float>(from.pixels[static_cast<std::size_t>(i)]) - kMean) / kDeviation;
  std::copy_n(from.labels.begin(), count, images.classes.data_ptr<std::int64_t>());
  return images;
}

struct Data {
  Images training, test;
};

/// Read once for all ranks of the process.
const Data& data() {
  static const Data loaded = [] {
    constexpr std::int64_t kTrainingImages = 60'000;
    const quickstart::FashionMnist all = quickstart::load_fashion_mnist();
    return Data{convert(all.training, kTrainingImages), convert(all.test, kTestImages)};
  }();
  return loaded;
}

/// Two convolutions and two linear layers, 52,138 parameters.
class Fashion final : public Task {
 public:
  explicit Fashion(std::uint64_t seed) : seed_(seed), data_(data()) {
    at::Generator random = generator(seed, 4);
    const auto layer = [&](const char* name, std::vector<std::int64_t> shape) {
      std::int64_t inputs = 1;
      for (std::size_t d = 1; d < shape.size(); ++d) inputs *= shape[d];
      return add(name, shape, std::sqrt(2.0 / static_cast<double>(inputs)), random);
    };
    conv1_ = layer("conv1.weight", {8, 1, 3, 3});
    conv1_bias_ = add("conv1.bias", {8}, 0, random);
    conv2_ = layer("conv2.weight", {16, 8, 3, 3});
    conv2_bias_ = add("conv2.bias", {16}, 0, random);
    hidden_ = layer("hidden.weight", {64, 16 * 7 * 7});
    hidden_bias_ = add("hidden.bias", {64}, 0, random);
    output_ = layer("output.weight", {10, 64});
    output_bias_ = add("output.bias", {10}, 0, random);
  }

  torch::Tensor loss(const BatchNumber& batch) override {
    const torch::Tensor rows = draw_indices(seed_, batch, kBatch, data_.training.classes.size(0));
    return torch::cross_entropy_loss(forward(data_.training.pixels.index_select(0, rows)),
                                     data_.training.classes.index_select(0, rows));
  }

  Evaluation evaluate() override {
    const torch::NoGradGuard no_grad;
    const torch::Tensor scores = forward(data_.test.pixels);
    const double right = (scores.argmax(1) == data_.test.classes).sum().item<double>();
    return {torch::cross_entropy_loss(scores, data_.test.classes).item<double>(), right / kTestImages};
  }

 private:
  torch::Tensor forward(const torch::Tensor& images) const {
    torch::Tensor x = torch::max_pool2d(torch::relu(torch::conv2d(images, conv1_, conv1_bias_, 1, 1)), 2);
    x = torch::max_pool2d(torch::relu(torch::conv2d(x, conv2_, conv2_bias_, 1, 1)), 2);
    return torch::linear(torch::relu(torch::linear(x.flatten(1), hidden_, hidden_bias_)), output_, output_bias_);
  }

  std::uint64_t seed_;
  const Data& data_;
  torch::Tensor conv1_, conv1_bias_, conv2_, conv2_bias_, hidden_, hidden_bias_, output_, output_bias_;
};

}  // namespace
}  // namespace convergence::fashion

namespace convergence {

std::unique_ptr<Task> make_fashion(std::uint64_t seed) { return std::make_unique<fashion::Fashion>(seed); }

}  // namespace convergence
