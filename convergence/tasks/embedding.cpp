#include <cmath>

#include "task.hpp"

namespace convergence::embedding {
namespace {

constexpr std::int64_t kUsers = 1024, kItems = 1024, kWidth = 16, kTrueWidth = 4, kBatch = 64, kTests = 4096;

/// Ratings are products of hidden rows. A batch touches few rows, popular ones far more often than others, so most of
/// every gradient is zero.
class Embedding final : public Task {
 public:
  explicit Embedding(std::uint64_t seed) : seed_(seed) {
    at::Generator random = generator(seed, 5);
    const torch::NoGradGuard no_grad;
    const double deviation = 1 / std::sqrt(static_cast<double>(kTrueWidth));
    true_users_ = torch::zeros({kUsers, kTrueWidth}).normal_(0, deviation, random);
    true_items_ = torch::zeros({kItems, kTrueWidth}).normal_(0, 1, random);
    popularity_ = torch::arange(1, kItems + 1).to(torch::kFloat32).reciprocal();
    users_ = add("users", {kUsers, kWidth}, 0.1, random);
    items_ = add("items", {kItems, kWidth}, 0.1, random);
    test_ = draw(random, kTests);
  }

  torch::Tensor loss(const BatchNumber& batch) override {
    constexpr std::uint64_t kBatches = std::uint64_t{3} << 32;
    at::Generator random = generator(seed_, kBatches + batch.global());
    return error(draw(random, kBatch));
  }

  Evaluation evaluate() override {
    const torch::NoGradGuard no_grad;
    const double now = error(test_).item<double>();
    return {now, now};
  }

 private:
  struct Ratings {
    torch::Tensor user, item, rating;
  };

  Ratings draw(at::Generator& random, std::int64_t count) const {
    const torch::NoGradGuard no_grad;
    Ratings ratings{
        torch::multinomial(popularity_, count, true, random), torch::multinomial(popularity_, count, true, random), {}};
    ratings.rating = (true_users_.index_select(0, ratings.user) * true_items_.index_select(0, ratings.item)).sum(1) +
                     torch::zeros({count}).normal_(0, 0.1, random);
    return ratings;
  }

  torch::Tensor error(const Ratings& ratings) const {
    const torch::Tensor guess =
        (torch::embedding(users_, ratings.user) * torch::embedding(items_, ratings.item)).sum(1);
    return (guess - ratings.rating).square().mean();
  }

  std::uint64_t seed_;
  torch::Tensor true_users_, true_items_, popularity_, users_, items_;
  Ratings test_;
};

}  // namespace
}  // namespace convergence::embedding

namespace convergence {

std::unique_ptr<Task> make_embedding(std::uint64_t seed) { return std::make_unique<embedding::Embedding>(seed); }

}  // namespace convergence
