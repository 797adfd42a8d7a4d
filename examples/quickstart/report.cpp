#include "report.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace quickstart {
namespace {

/// 417.3 KB, 1.19 GB: powers of 1,000, as networks count.
std::string readable_bytes(double bytes) {
  for (const char* unit : {"B", "KB", "MB"}) {
    if (bytes < 1000) return fmt::format("{:.4g} {}", bytes, unit);
    bytes /= 1000;
  }
  return fmt::format("{:.4g} GB", bytes);
}

nlohmann::json to_json(const Epoch& epoch) {
  std::vector<std::string> hashes;
  for (const std::uint64_t hash : epoch.parameter_hashes) hashes.push_back(hash_text(hash));
  return {{"loss", epoch.loss}, {"test_accuracy", epoch.test_accuracy}, {"parameter_hashes_by_rank", hashes}};
}

nlohmann::json to_json(const TrainingOptions& options) {
  return {{"codec", options.codec},       {"error_feedback", options.error_feedback},
          {"epochs", options.epochs},     {"batch_per_rank", options.batch_per_rank},
          {"seed", options.seed},         {"learning_rate", options.learning_rate},
          {"momentum", options.momentum}, {"momentum_correction", options.momentum_correction}};
}

nlohmann::json to_json(const TrainingResult& result) {
  nlohmann::json epochs = nlohmann::json::array();
  for (const Epoch& epoch : result.epochs) epochs.push_back(to_json(epoch));
  return {{"options", to_json(result.options)},
          {"ranks", result.ranks},
          {"transport", result.transport},
          {"final_loss", result.final_loss},
          {"test_accuracy", result.test_accuracy()},
          {"ranks_identical", result.ranks_identical()},
          {"steps", result.steps},
          {"sent_bytes_per_rank", result.traffic.sent_bytes},
          {"sent_bytes_per_rank_and_step", result.sent_bytes_per_step()},
          {"gradient_bytes", result.traffic.gradient_bytes},
          {"communication_share", result.communication_share()},
          {"encode_seconds", result.traffic.encode_seconds},
          {"combine_seconds", result.traffic.combine_seconds},
          {"decode_seconds", result.traffic.decode_seconds},
          {"wire_seconds", result.traffic.wire_seconds},
          {"training_seconds", result.training_seconds},
          {"seconds", result.seconds},
          {"epochs", epochs}};
}

/// How many times fewer bytes than the exact training sent; "-" where there is nothing to compare with.
std::string ratio_to_exact(const TrainingResult& result, const std::vector<TrainingResult>& results) {
  const auto exact = std::ranges::find(results, "exact", [](const TrainingResult& r) { return r.options.codec; });
  if (exact == results.end() || result.traffic.sent_bytes == 0) return "-";
  return fmt::format("{:.2f}x", exact->sent_bytes_per_step() / result.sent_bytes_per_step());
}

}  // namespace

std::string title(const TrainingOptions& options) {
  return options.codec + (options.momentum_correction ? ", momentum correction" : "") +
         (options.error_feedback || options.codec == "exact" ? "" : ", no feedback");
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

void ProgressLines::operator()(const Progress& progress) {
  const tightwire::TimePoint now = tightwire::Clock::now();
  if (progress.step != progress.steps && now < printed_ + std::chrono::seconds(1)) return;
  printed_ = now;
  fmt::print("{} epoch {}/{}  step {:>3}/{}  loss {:.3f}  {:>6.0f} images/s  {} sent per rank and step\n",
             title(progress.options), progress.epoch, progress.options.epochs, progress.step, progress.steps,
             progress.loss, progress.images_per_second,
             readable_bytes(static_cast<double>(progress.last_step.sent_bytes)));
  std::fflush(stdout);
}

std::string describe_differences(const TrainingResult& result) {
  std::string text;
  for (std::size_t e = 0; e < result.epochs.size(); ++e) {
    const std::vector<std::uint64_t>& hashes = result.epochs[e].parameter_hashes;
    for (std::size_t rank = 1; rank < hashes.size(); ++rank)
      if (hashes[rank] != hashes[0])
        text += fmt::format("{}: after epoch {} the parameters of rank {} have hash {}, those of rank 0 {}\n",
                            title(result.options), e + 1, rank, hash_text(hashes[rank]), hash_text(hashes[0]));
  }
  return text;
}

std::string table(const std::vector<TrainingResult>& results) {
  constexpr const char* kRow = "{:<36} {:>10} {:>9} {:>12} {:>10} {:>8} {:>11} {:>7}  {}\n";
  std::string text = fmt::format(kRow, "", "", "test", "sent per", "sent", "fewer", "time in", "", "ranks") +
                     fmt::format(kRow, "codec", "final loss", "accuracy", "step", "in all", "bytes", "all-reduce",
                                 "time", "identical");
  for (const TrainingResult& result : results)
    text +=
        fmt::format(kRow, title(result.options), fmt::format("{:.4f}", result.final_loss),
                    fmt::format("{:.2f} %", 100 * result.test_accuracy()), readable_bytes(result.sent_bytes_per_step()),
                    readable_bytes(static_cast<double>(result.traffic.sent_bytes)), ratio_to_exact(result, results),
                    fmt::format("{:.1f} %", 100 * result.communication_share()),
                    fmt::format("{:.0f} s", result.seconds), result.ranks_identical() ? "yes" : "NO");
  return text;
}

void write_json(const std::filesystem::path& file, const std::vector<TrainingResult>& results) {
  nlohmann::json runs = nlohmann::json::array();
  for (const TrainingResult& result : results) runs.push_back(to_json(result));
  std::ofstream out(file);
  out << nlohmann::json{{"trainings", runs}}.dump(2) << '\n';
  if (!out.flush()) throw std::runtime_error("cannot write the result to " + file.string());
}

}  // namespace quickstart
