#include "training.hpp"

#include <bit>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <tightwire/core_session.hpp>
#include <tightwire/hierarchy_text.hpp>
#include <tightwire/session.hpp>

#include "controls.hpp"
#include "lines.hpp"
#include "optimizing.hpp"
#include "task.hpp"

namespace convergence {
namespace {

void use_one_deterministic_thread() {
  at::set_num_threads(1);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // OpenBLAS has a pool of its own, which libtorch does not limit and which may not be there.
  if (void* limit = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(limit)(1);
}

double mean_over_ranks(tightwire::Transport& transport, double mine) {
  double sum = 0;
  for (const std::uint64_t bits : tightwire::gather_values(transport, std::bit_cast<std::uint64_t>(mine)))
    sum += std::bit_cast<double>(bits);
  return sum / transport.size();
}

/// One rank's part of a training.
class Training {
 public:
  Training(std::shared_ptr<tightwire::Transport> transport, const Options& options, Recorder& recorder)
      : transport_(std::move(transport)),
        options_(options),
        control_(make_control(options.control)),
        task_(make_task(options.task, options.seed)),
        recorder_(recorder) {
    for (const NamedParameter& parameter : task_->parameters()) parameters_.push_back(parameter.value);
    for (torch::Tensor& parameter : parameters_) {
      parameter.mutable_grad() = torch::zeros_like(parameter, torch::MemoryFormat::Contiguous);
      gradients_.emplace_back(parameter.grad().data_ptr<float>(), static_cast<std::size_t>(parameter.numel()));
      pointers_.push_back(gradients_.back().data());
    }
    tightwire::set_codec(session_options_, options_.codec, transport_->size());
    session_options_.error_feedback = options_.error_feedback;
    session_options_.seed = options_.seed;
    if (options_.momentum_correction > 0)
      session_options_.momentum = {.factor = static_cast<float>(options_.momentum_correction),
                                   .optimizer_momentum = 0.0};
    control_->configure(session_options_, options_);
    optimizer_ = make_optimizer(options_, parameters_);
    make_session();
  }

  /// The mean of this rank's losses.
  double step(std::size_t number) {
    if (control_->rebuilds(number)) {
      control_->save(*session_);
      sent_before_ += session_->total().sent_bytes;
      gradients_before_ += session_->total().gradient_bytes;
      make_session();
      control_->restore(*session_);
    }
    const double loss = backward(number);
    recorder_.gradient(rank(), number, gradients_);
    if (options_.launched) recorder_.collect_gradients(*transport_, recorder_channel_, number);
    const Step step{number, rank(), ranks(), options_.seed, gradients_, *session_};
    control_->before_reduction(step);
    session_->all_reduce(std::span<void* const>(pointers_));
    session_->commit();
    control_->after_reduction(step);
    if (rank() == 0) recorder_.result(number, gradients_);
    if (options_.clip_norm > 0) clip(parameters_, options_.clip_norm);
    set_learning_rate(*optimizer_, learning_rate(options_, number) * control_->learning_rate_factor(ranks()));
    optimizer_->step();
    return loss;
  }

  /// Collective; what it returns is of use on rank 0.
  Evaluated evaluate(std::size_t steps_done) {
    Evaluated state{};
    state.step = steps_done;
    recorder_.residual(rank(), *session_);
    if (options_.launched) recorder_.collect_residuals(*transport_, recorder_channel_);
    const auto hashes = tightwire::gather_values(*transport_, hash());
    for (const std::uint64_t hash : hashes) state.differing_ranks += hash != hashes[0] ? 1 : 0;
    if (rank() != 0) return state;
    if (steps_done > 0) state.balance = recorder_.balance(options_.codec.starts_with("hadamard"));
    state.evaluation = task_->evaluate();
    state.sent_bytes = sent_bytes();
    state.gradient_bytes = gradients_before_ + session_->total().gradient_bytes;
    return state;
  }

  std::uint64_t sent_bytes() const { return sent_before_ + session_->total().sent_bytes; }
  std::size_t rank() const { return static_cast<std::size_t>(transport_->rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(transport_->size()); }
  Task& task() { return *task_; }

 private:
  void make_session() {
    session_.reset();
    session_ = std::make_unique<tightwire::Session>(transport_, session_options_);
    for (const NamedParameter& parameter : task_->parameters())
      session_->add(parameter.name, parameter.value.sizes().vec());
    session_->seal();
  }

  double backward(std::size_t number) {
    for (const std::span<float> gradient : gradients_) std::memset(gradient.data(), 0, gradient.size_bytes());
    double all = 0;
    const auto batches = static_cast<double>(options_.accumulate);
    for (std::size_t batch = 0; batch < options_.accumulate; ++batch) {
      const torch::Tensor loss =
          task_->loss({number * options_.accumulate + batch, control_->data_of(rank(), ranks()), ranks()});
      (loss / batches).backward();
      all += loss.item<double>();
    }
    return all / batches;
  }

  std::uint64_t hash() const {
    std::string bytes;
    const auto append = [&](const void* data, std::size_t size) { bytes.append(static_cast<const char*>(data), size); };
    for (const torch::Tensor& parameter : parameters_) append(parameter.data_ptr(), parameter.nbytes());
    for (const std::span<float> gradient : gradients_) append(gradient.data(), gradient.size_bytes());
    return tightwire::fingerprint(bytes);
  }

  std::shared_ptr<tightwire::Transport> transport_;
  Options options_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Task> task_;
  Recorder& recorder_;
  std::uint32_t recorder_channel_ = transport_->next_channel();
  std::vector<torch::Tensor> parameters_;
  std::vector<std::span<float>> gradients_;
  std::vector<void*> pointers_;
  tightwire::SessionOptions session_options_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<tightwire::Session> session_;
  std::uint64_t sent_before_ = 0, gradients_before_ = 0;
};

/// Whether everything a codec drops must be found again in residuals. Momentum correction masks some of it on purpose.
bool feedback_promised(const Options& options) { return options.error_feedback && options.momentum_correction == 0; }

double seconds_since(tightwire::TimePoint began) {
  return std::chrono::duration<double>(tightwire::Clock::now() - began).count();
}

}  // namespace

void train(const std::shared_ptr<tightwire::Transport>& transport, const Options& options, Recorder& recorder) {
  const tightwire::TimePoint began = tightwire::Clock::now();
  use_one_deterministic_thread();
  Training training(transport, options, recorder);
  std::optional<Lines> lines;
  if (transport->rank() == 0) lines.emplace(options, describe_task(options.task), feedback_promised(options));
  const auto evaluate = [&](std::size_t steps_done) {
    const Evaluated state = training.evaluate(steps_done);
    if (!lines) return;
    lines->evaluated(state);
    lines->parameters(training.task().parameters());
    if (steps_done == options.steps) lines->final(state, seconds_since(began));
  };
  evaluate(0);
  constexpr std::size_t kPoints = 100;  // of the curve
  const std::size_t every = (options.steps + kPoints - 1) / kPoints;
  double losses = 0;
  std::size_t evaluations = 0;
  for (std::size_t step = 0; step < options.steps; ++step) {
    losses += training.step(step);
    const std::size_t done = step + 1;
    if (done % every == 0) {
      const double mean = mean_over_ranks(*transport, losses / static_cast<double>(every));
      if (lines) lines->step(done, mean, training.sent_bytes());
      losses = 0;
    }
    if (done * options.evaluations / options.steps > evaluations) {
      evaluations = done * options.evaluations / options.steps;
      evaluate(done);
    }
  }
}

}  // namespace convergence
