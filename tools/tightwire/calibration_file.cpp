#include "calibration_file.hpp"

#include <fstream>
#include <iomanip>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>
#include <tightwire/core_codecs.hpp>

namespace tightwire::tool {
namespace {

constexpr int kVersion = 2;

Error bad(const std::string& path, const std::string& what) {
  return Error(Errc::invalid_argument, "calibration \"" + path + "\": " + what);
}

double predicted(const Trial& trial, const Calibration& calibration) {
  return seconds_of(trial.load, {calibration.ranks, 1, calibration.link, calibration.link}, calibration.costs);
}

/// Of which a figure must be.
struct Range {
  double least = 0;
  double most = std::numeric_limits<double>::max();
};

double number(const nlohmann::json& from, const char* key, Range range, const std::string& path) {
  if (!from.contains(key) || !from.at(key).is_number()) throw bad(path, std::string("\"") + key + "\" is no number");
  const double value = from.at(key).get<double>();
  if (!(value >= range.least && value <= range.most))
    throw bad(path, std::string("\"") + key + "\" is " + std::to_string(value));
  return value;
}

Calibration calibration_of(const nlohmann::json& json, const std::string& path) {
  if (!json.is_object() || json.value("tightwire_calibration", 0) != kVersion)
    throw bad(path, "is no calibration of version " + std::to_string(kVersion));
  if (!json.contains("link") || !json.at("link").is_object()) throw bad(path, "\"link\" is missing");
  if (!json.contains("codecs") || !json.at("codecs").is_object()) throw bad(path, "\"codecs\" are missing");
  Calibration calibration;
  calibration.ranks = static_cast<int>(number(json, "ranks", {1, 1 << 20}, path));
  calibration.shares_memory = json.at("shares_memory").get<bool>();
  calibration.ranks_per_core = static_cast<int>(number(json, "ranks_per_core", {0, 1 << 20}, path));
  const nlohmann::json& link = json.at("link");
  calibration.link = {1e-6 * number(link, "latency_us", {}, path), 1e-6 * number(link, "message_us", {}, path),
                      number(link, "gbit_per_s", {.least = 1e-9}, path) / 8e-9,
                      number(link, "overlap", {.least = 0, .most = 1}, path)};
  for (const auto& [codec, points] : json.at("codecs").items())
    for (const nlohmann::json& point : points)
      calibration.costs.add(
          codec, number(point, "bucket_bytes", {.least = 1}, path),
          {1e-9 * number(point, "encode_ns_per_byte", {}, path), 1e-9 * number(point, "combine_ns_per_byte", {}, path),
           1e-9 * number(point, "decode_ns_per_byte", {}, path)});
  return calibration;
}

}  // namespace

void write_calibration(const std::string& path, const Calibration& calibration, const std::string& transport) {
  nlohmann::ordered_json json = {{"tightwire_calibration", kVersion},
                                 {"ranks", calibration.ranks},
                                 {"transport", transport},
                                 {"shares_memory", calibration.shares_memory},
                                 {"ranks_per_core", calibration.ranks_per_core},
                                 {"link",
                                  {{"latency_us", 1e6 * calibration.link.latency_seconds},
                                   {"message_us", 1e6 * calibration.link.message_seconds},
                                   {"gbit_per_s", 8e-9 * calibration.link.bytes_per_second},
                                   {"overlap", calibration.link.overlap}}}};
  for (const auto& [codec, points] : calibration.costs.points())
    for (const auto& [bytes, cost] : points)
      json["codecs"][codec].push_back({{"bucket_bytes", bytes},
                                       {"encode_ns_per_byte", 1e9 * cost.encode_seconds},
                                       {"combine_ns_per_byte", 1e9 * cost.combine_seconds},
                                       {"decode_ns_per_byte", 1e9 * cost.decode_seconds}});
  for (const Trial& trial : calibration.trials)
    json["trials"].push_back({{"codec", trial.codec},
                              {"bucket_bytes", trial.bucket_bytes},
                              {"seconds", trial.seconds},
                              {"predicted_seconds", predicted(trial, calibration)}});
  std::ofstream file(path);
  file << json.dump(1) << '\n' << std::flush;
  if (!file) throw bad(path, "cannot be written");
}

Calibration read_calibration(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw bad(path, "cannot be read");
  try {
    return calibration_of(nlohmann::json::parse(file), path);
  } catch (const nlohmann::json::exception& error) {
    throw bad(path, error.what());
  }
}

std::string as_text(const Calibration& calibration) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << calibration.ranks << " ranks: latency "
       << 1e6 * calibration.link.latency_seconds << " us, " << 1e6 * calibration.link.message_seconds
       << " us per message, " << 8e-9 * calibration.link.bytes_per_second << " Gbit/s, overlap "
       << calibration.link.overlap << "\n"
       << std::left << std::setw(26) << "codec" << std::right << std::setw(12) << "MiB" << std::setw(14)
       << "measured ms" << std::setw(14) << "model ms" << '\n';
  for (const Trial& trial : calibration.trials)
    text << std::left << std::setw(26) << trial.codec << std::right << std::setprecision(3) << std::setw(12)
         << trial.bucket_bytes / (1 << 20) << std::setw(14) << 1e3 * trial.seconds << std::setw(14)
         << 1e3 * predicted(trial, calibration) << '\n';
  return text.str();
}

}  // namespace tightwire::tool
