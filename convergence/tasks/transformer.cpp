#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "task.hpp"

namespace convergence::transformer {
namespace {

constexpr std::int64_t kLetters = 32, kWidth = 48, kHeads = 4, kInside = 96, kContext = 32, kBatch = 8, kTests = 64;

/// Of the books of Moses: lower case, with what is neither letter nor common punctuation as a space. What Debian's
/// package bible-kjv prints of the text in bible-kjv-text.
std::vector<std::int64_t> read_text() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen("bible -f Gen1:1-Deut34:12 </dev/null", "r"),
                                                             &pclose);
  if (!pipe) throw std::runtime_error("the program bible cannot be started");
  const std::string marks = " abcdefghijklmnopqrstuvwxyz.,:;'";
  std::vector<std::int64_t> letters;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get()) != nullptr) {
    const std::string line(buffer.data());
    for (const char c : line.substr(std::min(line.size(), line.find(' ') + 1))) {
      const auto lower = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      const std::size_t at = marks.find(lower);
      letters.push_back(static_cast<std::int64_t>(at == std::string::npos ? 0 : at));
    }
  }
  if (letters.size() < 500'000)
    throw std::runtime_error("the program bible printed " + std::to_string(letters.size()) +
                             " letters of the books of Moses, which are some 800,000: apt-get install bible-kjv "
                             "bible-kjv-text");
  return letters;
}

/// One tensor for all ranks of the process.
const torch::Tensor& text() {
  static const torch::Tensor read = torch::tensor(read_text(), torch::kInt64);
  return read;
}

/// Attention and one hidden layer, both beside a residual path, 23,184 parameters.
class Transformer final : public Task {
 public:
  explicit Transformer(std::uint64_t seed) : seed_(seed), text_(text()) {
    at::Generator random = generator(seed, 6);
    const double deviation = 1 / std::sqrt(static_cast<double>(kWidth));
    letters_ = add("letters", {kLetters, kWidth}, 0.5, random);
    places_ = add("places", {kContext, kWidth}, 0.1, random);
    norms_ = {add("norm1", {kWidth}, 0, random), add("norm2", {kWidth}, 0, random), add("norm3", {kWidth}, 0, random)};
    attention_ = add("attention", {3 * kWidth, kWidth}, deviation, random);
    joined_ = add("joined", {kWidth, kWidth}, deviation, random);
    inside_ = add("inside", {kInside, kWidth}, deviation, random);
    outside_ = add("outside", {kWidth, kInside}, 0.5 * deviation, random);
    output_ = add("output", {kLetters, kWidth}, 0.5 * deviation, random);
    future_ = torch::full({kContext, kContext}, -1e9f).triu(1);
    at::Generator of_test = generator(0, 7);
    test_starts_ = training_end() + torch::randint(test_letters(), {kTests}, of_test, torch::kInt64);
  }

  torch::Tensor loss(const BatchNumber& batch) override {
    return loss_at(draw_indices(seed_, batch, kBatch, training_end() - kContext - 1));
  }

  Evaluation evaluate() override {
    const torch::NoGradGuard no_grad;
    const double now = loss_at(test_starts_).item<double>();
    return {now, now};
  }

 private:
  std::int64_t training_end() const { return text_.size(0) * 9 / 10; }
  std::int64_t test_letters() const { return text_.size(0) - training_end() - kContext - 1; }

  torch::Tensor loss_at(const torch::Tensor& starts) const {
    const torch::Tensor at = starts.unsqueeze(1) + torch::arange(kContext + 1);
    const torch::Tensor rows = text_.index_select(0, at.flatten()).view({-1, kContext + 1});
    const torch::Tensor scores = forward(rows.slice(1, 0, kContext));
    return torch::cross_entropy_loss(scores.reshape({-1, kLetters}), rows.slice(1, 1).reshape({-1}));
  }

  torch::Tensor normalized(const torch::Tensor& x, std::size_t which) const {
    return torch::layer_norm(x, {kWidth}, norms_[which] + 1);
  }

  torch::Tensor forward(const torch::Tensor& rows) const {
    const std::int64_t batch = rows.size(0);
    torch::Tensor x = torch::embedding(letters_, rows) + places_;
    const torch::Tensor mixed = torch::linear(normalized(x, 0), attention_)
                                    .view({batch, kContext, 3, kHeads, kWidth / kHeads})
                                    .permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(kWidth) / kHeads);
    const torch::Tensor weights = torch::softmax(mixed[0].matmul(mixed[1].transpose(-2, -1)) * scale + future_, -1);
    const torch::Tensor attended = weights.matmul(mixed[2]).transpose(1, 2).reshape({batch, kContext, kWidth});
    x = x + torch::linear(attended, joined_);
    x = x + torch::linear(torch::relu(torch::linear(normalized(x, 1), inside_)), outside_);
    return torch::linear(normalized(x, 2), output_);
  }

  std::uint64_t seed_;
  const torch::Tensor& text_;
  std::array<torch::Tensor, 3> norms_;
  torch::Tensor letters_, places_, attention_, joined_, inside_, outside_, output_, future_, test_starts_;
};

}  // namespace
}  // namespace convergence::transformer

namespace convergence {

std::unique_ptr<Task> make_transformer(std::uint64_t seed) { return std::make_unique<transformer::Transformer>(seed); }

}  // namespace convergence
