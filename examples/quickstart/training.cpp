#include "training.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/sgd.h>
#include <tightwire/tightwire.hpp>

#include "model.hpp"

namespace quickstart {
namespace {

double seconds_since(tightwire::TimePoint began) {
  return std::chrono::duration<double>(tightwire::Clock::now() - began).count();
}

/// Up to the highest rate in the first tenth of the steps, then down to 0 along a cosine.
class WarmUpThenCosine : public torch::optim::LRScheduler {
 public:
  WarmUpThenCosine(torch::optim::Optimizer& optimizer, double highest, std::size_t steps)
      : LRScheduler(optimizer), highest_(highest), steps_(static_cast<double>(steps)) {
    step();  // sets the rate of the first step
  }

 private:
  std::vector<double> get_lrs() override {
    const double at = static_cast<double>(step_count_) / steps_;
    constexpr double kWarmUp = 0.1;
    const double rate = at < kWarmUp ? highest_ * (at * steps_ + 1) / (kWarmUp * steps_ + 1)
                                     : highest_ * (1 + std::cos(std::numbers::pi * (at - kWarmUp) / (1 - kWarmUp))) / 2;
    return std::vector<double>(get_current_lrs().size(), rate);
  }

  double highest_;
  double steps_;
};

/// The order in which an epoch visits the images; the same on every rank.
std::vector<std::size_t> shuffled(std::size_t images, std::uint64_t seed, int epoch) {
  std::vector<std::size_t> order(images);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::seed_seq sequence{seed, static_cast<std::uint64_t>(epoch)};
  std::mt19937_64 random(sequence);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

/// Memory for the gradients that stays where it is, so that the Session can be given its addresses once.
std::vector<void*> allocate_gradients(const Network& network) {
  std::vector<void*> gradients;
  for (torch::Tensor& parameter : network.parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter, torch::MemoryFormat::Contiguous);
    gradients.push_back(parameter.grad().data_ptr());
  }
  return gradients;
}

double mean_over_ranks(tightwire::Transport& transport, double mine) {
  double sum = 0;
  for (const std::uint64_t bits : tightwire::gather_values(transport, std::bit_cast<std::uint64_t>(mine)))
    sum += std::bit_cast<double>(bits);
  return sum / transport.size();
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Every rank counts its part of the test images.
double test_accuracy(tightwire::Transport& transport, Network& network, const LabelledImages& images) {
  const auto rank = static_cast<std::size_t>(transport.rank()), ranks = static_cast<std::size_t>(transport.size());
  const std::uint64_t mine =
      count_correct(network, images, images.size() * rank / ranks, images.size() * (rank + 1) / ranks);
  const auto correct = tightwire::gather_values(transport, mine);
  return static_cast<double>(std::accumulate(correct.begin(), correct.end(), std::uint64_t{0})) /
         static_cast<double>(images.size());
}

/// Collective, like everything between ranks.
Epoch finish_epoch(tightwire::Transport& transport, Network& network, const LabelledImages& test, double loss) {
  const double mean_loss = mean_over_ranks(transport, loss);
  const double accuracy = test_accuracy(transport, network, test);
  return {mean_loss, accuracy, tightwire::gather_values(transport, hash_parameters(network))};
}

std::size_t steps_per_epoch(const TrainingOptions& options, std::size_t ranks, std::size_t images) {
  const std::size_t possible = images / (ranks * options.batch_per_rank);
  const std::size_t steps = options.steps_per_epoch == 0 ? possible : options.steps_per_epoch;
  if (steps == 0 || steps > possible)
    throw std::invalid_argument(std::to_string(images) + " images suffice for " + std::to_string(possible) +
                                " steps of " + std::to_string(options.batch_per_rank) + " images on each of " +
                                std::to_string(ranks) + " ranks, not for " + std::to_string(steps));
  return steps;
}

}  // namespace

TrainingResult train(const std::shared_ptr<tightwire::Transport>& transport, const FashionMnist& data,
                     const TrainingOptions& options, const std::function<void(const Progress&)>& listen) {
  const auto rank = static_cast<std::size_t>(transport->rank()), ranks = static_cast<std::size_t>(transport->size());
  const std::size_t steps = steps_per_epoch(options, ranks, data.training.size());
  TrainingResult result;
  result.options = options;
  result.ranks = transport->size();
  result.transport = transport->describe();
  const tightwire::TimePoint began = tightwire::Clock::now();

  use_one_deterministic_thread();
  Network network(options.seed);
  const auto sgd =
      torch::optim::SGDOptions(options.learning_rate).momentum(options.momentum_correction ? 0 : options.momentum);
  torch::optim::SGD optimizer(network.parameters(), sgd);
  WarmUpThenCosine schedule(optimizer, options.learning_rate, steps * static_cast<std::size_t>(options.epochs));

  // What data-parallel training needs of tightwire: a Session that knows the parameters ...
  tightwire::SessionOptions session_options{.codec = tightwire::parse_codec(options.codec),
                                            .error_feedback = options.error_feedback};
  if (options.momentum_correction)
    session_options.momentum = {.factor = static_cast<float>(options.momentum), .optimizer_momentum = sgd.momentum()};
  tightwire::Session session(transport, session_options);
  for (const auto& parameter : network.named_parameters())
    session.add(parameter.key(), parameter.value().sizes().vec());
  session.seal();

  const std::vector<void*> gradients = allocate_gradients(network);
  std::vector<double> losses;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    const std::vector<std::size_t> order = shuffled(data.training.size(), options.seed, epoch);
    const tightwire::TimePoint epoch_began = tightwire::Clock::now();
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t first = (step * ranks + rank) * options.batch_per_rank;
      const Batch batch = make_batch(data.training, std::span(order).subspan(first, options.batch_per_rank));
      network.zero_grad(/*set_to_none=*/false);
      const torch::Tensor loss = torch::cross_entropy_loss(network.forward(batch.images), batch.classes);
      loss.backward();

      session.all_reduce(gradients);           // ... that puts the mean over ranks in the place of each gradient ...
      if (session.commit()) optimizer.step();  // ... and says whether the step counts.

      schedule.step();
      losses.push_back(loss.item<double>());
      if (!listen) continue;
      const double rate = static_cast<double>((step + 1) * ranks * options.batch_per_rank) / seconds_since(epoch_began);
      listen({options, epoch, step + 1, steps, mean(std::span(losses).last(step + 1)), rate, session.last_step()});
    }
    result.training_seconds += seconds_since(epoch_began);
    result.epochs.push_back(finish_epoch(*transport, network, data.test, mean(std::span(losses).last(steps))));
  }
  result.final_loss =
      mean_over_ranks(*transport, mean(std::span(losses).last(std::min<std::size_t>(100, losses.size()))));
  result.steps = session.steps();
  result.traffic = session.total();
  result.seconds = seconds_since(began);
  return result;
}

bool Epoch::ranks_identical() const {
  return std::ranges::adjacent_find(parameter_hashes, std::not_equal_to{}) == parameter_hashes.end();
}

bool TrainingResult::ranks_identical() const { return std::ranges::all_of(epochs, &Epoch::ranks_identical); }

}  // namespace quickstart
