#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "training.hpp"

namespace quickstart {

/// "int8", or "int8, no feedback".
std::string title(const TrainingOptions& options);

/// Prints a line about every second, and at the end of every epoch.
class ProgressLines {
 public:
  void operator()(const Progress& progress);

 private:
  tightwire::TimePoint printed_{};
};

std::string hash_text(std::uint64_t hash);

/// Which ranks hold other parameters than rank 0, epoch by epoch; empty when none does.
std::string describe_differences(const TrainingResult& result);

/// One row per training, compared with the first that was exact.
std::string table(const std::vector<TrainingResult>& results);

/// All of it as JSON. Throws std::runtime_error that names the file when it cannot be written.
void write_json(const std::filesystem::path& file, const std::vector<TrainingResult>& results);

}  // namespace quickstart
