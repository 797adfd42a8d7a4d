// Trains a small convolutional network on Fashion-MNIST on all ranks of a job, once per codec, and compares the
// outcomes. Runs under `tightwire run -n 4 --`, mpirun, srun, torchrun. The part that uses tightwire is training.cpp.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <malloc.h>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <tightwire/tightwire.hpp>

#include "data.hpp"
#include "report.hpp"
#include "training.hpp"

namespace {

constexpr int kRanksDiffer = 1, kFailed = 2;

constexpr const char* kLegend =
    "Bytes: sent by rank 0. Time in all-reduce: part of a step, with the codec and with waiting for ranks that are\n"
    "slower or share a core. Identical: by hash of all parameters, compared after every epoch.";

struct Arguments {
  std::vector<std::string> codecs{"exact", "int8", "int4"};
  quickstart::TrainingOptions training;
  std::filesystem::path data = quickstart::kFashionMnistDirectory;
  std::filesystem::path result = "quickstart.json";
};

void describe(CLI::App& app, Arguments& arguments) {
  app.option_defaults()->always_capture_default();
  quickstart::TrainingOptions& training = arguments.training;
  app.add_option("--codec", arguments.codecs,
                 "Trainings to run, one after another: specifications such as int4:block=32 or topk:ratio=0.01; names "
                 "are " +
                     tightwire::codec_names());
  app.add_option("--epochs", training.epochs, "Times each image is seen")->check(CLI::Range(1, 1000));
  app.add_option("--steps", training.steps_per_epoch, "Steps per epoch; 0: as many as the images suffice for");
  app.add_option("--batch", training.batch_per_rank, "Images per rank and step")->check(CLI::Range(1, 10'000));
  app.add_option("--seed", training.seed, "Of the first weights and of the order of the images");
  app.add_option("--learning-rate", training.learning_rate, "At its highest, after the warm-up");
  app.add_option("--momentum", training.momentum, "Of the optimizer");
  app.add_flag("--momentum-correction", training.momentum_correction,
               "Apply momentum before elements are chosen, and none in the optimizer; for topk");
  app.add_flag("!--no-error-feedback", training.error_feedback,
               "Forget what a codec drops instead of adding it next time");
  app.add_option("--data", arguments.data, "Directory of Fashion-MNIST");
  app.add_option("--result", arguments.result, "File for the result as JSON, written by rank 0");
}

/// Freed memory stays with the process: a step frees and takes the same large tensors, and fresh pages are slow.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

int run(const std::shared_ptr<tightwire::Transport>& transport, const Arguments& arguments) {
  const bool speaker = transport->rank() == 0;
  const quickstart::FashionMnist data = quickstart::load_fashion_mnist(arguments.data);
  if (speaker)
    fmt::print("Fashion-MNIST: {} training and {} test images; {} ranks, {}\n", data.training.size(), data.test.size(),
               transport->size(), transport->describe());
  std::vector<quickstart::TrainingResult> results;
  for (const std::string& codec : arguments.codecs) {
    quickstart::TrainingOptions options = arguments.training;
    options.codec = codec;
    std::function<void(const quickstart::Progress&)> listen;
    if (speaker) listen = quickstart::ProgressLines{};
    results.push_back(quickstart::train(transport, data, options, listen));
  }
  std::string differences;
  for (const quickstart::TrainingResult& result : results) differences += describe_differences(result);
  if (speaker) {
    fmt::print("\n{}\n{}\n{}", table(results), kLegend, differences);
    write_json(arguments.result, results);
    fmt::print("All of it: {}\n", arguments.result.string());
  }
  return differences.empty() ? 0 : kRanksDiffer;
}

}  // namespace

int main(int count, char** values) {
  Arguments arguments;
  CLI::App app("Trains a small network on Fashion-MNIST with compressed gradients, on all ranks of a job");
  describe(app, arguments);
  CLI11_PARSE(app, count, values);
  keep_freed_memory();
  std::shared_ptr<tightwire::Transport> transport;
  try {
    transport = tightwire::open_transport(tightwire::rendezvous::environment());
    return run(transport, arguments);
  } catch (const std::exception& error) {
    if (transport) transport->abort(error.what());  // the others need not wait for us
    fmt::print(stderr, "quickstart: {}\n", error.what());
    return kFailed;
  }
}
