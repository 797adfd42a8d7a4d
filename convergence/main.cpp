// Trains one task of the convergence suite once, on ranks that are threads or launched processes, and prints what
// became of it as JSON lines.
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

#include <malloc.h>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <tightwire/codec.hpp>
#include <tightwire/core_session.hpp>
#include <tightwire/local_transport.hpp>

#include "controls.hpp"
#include "launching/launched.hpp"
#include "optimizing.hpp"
#include "task.hpp"
#include "training.hpp"

namespace {

constexpr int kFailed = 2;

void describe(CLI::App& app, convergence::Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--task", options.task, "What to train; --list tells");
  app.add_option(
      "--codec", options.codec,
      "Specification, or \"hier(inside=exact, across=int4, levels=node:2)\"; names are " + tightwire::codec_names());
  app.add_flag("!--no-error-feedback", options.error_feedback, "Not asked for by this scheme");
  app.add_option("--momentum-correction", options.momentum_correction, "Momentum that the Session applies; 0: none");
  app.add_option("--control", options.control, "A change that the suite must notice, or must not; --list tells");
  app.add_option("--seed", options.seed, "Of data, their order and first weights");
  app.add_option("--ranks", options.ranks, "Threads")->check(CLI::Range(1, 64));
  app.add_flag("--launched", options.launched,
               "This process is one rank, as tightwire run, mpirun, srun or torchrun tell");
  app.add_option("--steps", options.steps, "0: the task's");
  app.add_option("--optimizer", options.optimizer, "sgd, momentum, nesterov, adam or adamw; the task's if not given");
  app.add_option("--learning-rate", options.learning_rate, "The highest; 0: the task's");
  app.add_option("--weight-decay", options.weight_decay, "Of the optimizer");
  app.add_option("--clip-norm", options.clip_norm, "Length the mean gradient is clipped to; 0: none");
  app.add_option("--accumulate", options.accumulate, "Batches per rank and step")->check(CLI::Range(1, 1024));
  app.add_option("--warm-up", options.warm_up, "Part of the steps in which the learning rate rises")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--evaluations", options.evaluations, "In a training, after the first");
  app.add_option("--parameters", options.parameters, "File for a sample of the parameters at every evaluation");
}

void list() {
  nlohmann::ordered_json json;
  for (const convergence::TaskDescription& task : convergence::tasks())
    json["tasks"].push_back({{"name", task.name},
                             {"what", task.what},
                             {"metric", task.metric},
                             {"higher_is_better", task.higher_is_better},
                             {"steps", task.steps},
                             {"optimizer", task.optimizer},
                             {"learning_rate", task.learning_rate}});
  for (const convergence::ControlDescription& control : convergence::controls())
    json["controls"].push_back({{"name", control.name}, {"negative", control.negative}, {"what", control.what}});
  std::cout << json.dump(2) << '\n';
}

/// Freed memory stays with the process: a step frees and takes the same tensors, and fresh pages are slow.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

void train_on_threads(const convergence::Options& options) {
  convergence::Recorder recorder(static_cast<std::size_t>(options.ranks));
  tightwire::local::run(options.ranks, [&](const std::shared_ptr<tightwire::Transport>& transport) {
    convergence::train(transport, options, recorder);
  });
}

void train_launched(const convergence::Options& options) {
  const std::shared_ptr<tightwire::Transport> transport = convergence::join_launched_job();
  if (transport->size() != options.ranks)
    throw std::invalid_argument("--ranks is " + std::to_string(options.ranks) + ", and the launcher started " +
                                std::to_string(transport->size()));
  convergence::Recorder recorder(static_cast<std::size_t>(options.ranks));
  convergence::train(transport, options, recorder);
}

}  // namespace

int main(int count, char** values) {
  convergence::Options options;
  bool only_list = false;
  CLI::App app("Trains one task of the convergence suite once; prints JSON lines", "convergence_trainer");
  describe(app, options);
  app.add_flag("--list", only_list, "Tell tasks and controls, as JSON");
  CLI11_PARSE(app, count, values);
  try {
    if (only_list) {
      list();
      return 0;
    }
    keep_freed_memory();
    options = convergence::complete(options);
    options.launched ? train_launched(options) : train_on_threads(options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "convergence_trainer: {}\n", error.what());
    return kFailed;
  }
}
