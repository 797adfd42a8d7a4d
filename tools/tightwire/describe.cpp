#include "describe.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <sstream>

#include <nlohmann/json.hpp>
#include <tightwire/tightwire.hpp>

#include "build_info.hpp"

namespace tightwire::tool {
namespace {

std::vector<CodecState> codec_states() {
  std::vector<CodecState> states;
  for (const BuiltinCodec& codec : builtin_codecs()) {
    const auto coder = codec.make({}, host::level());
    constexpr std::size_t kMany = std::size_t{1} << 20;
    const double bits = 8 * static_cast<double>(coder->wire_bytes(kMany)) / static_cast<double>(kMany);
    states.push_back({coder->spec(), std::round(bits * 100) / 100, std::round(codec.accuracy * 1e6) / 1e6});
  }
  return states;
}

std::string level_note() {
  const char* asked = std::getenv("TIGHTWIRE_CPU_LEVEL");
  if (asked == nullptr) return "";
  std::string setting = "TIGHTWIRE_CPU_LEVEL=" + std::string(asked);
  if (asked == host::to_string(host::level())) return setting;
  return setting + " is not possible here and has no effect";
}

/// How gradients on devices go over a transport of the host's.
std::string staging_note(const std::optional<UcxState>& ucx) {
  std::string note = "through pinned host memory, over any transport but nccl";
  if (ucx) note += ucx->knows_cuda_memory ? "; UCX here knows CUDA memory, unused" : "; UCX here is without CUDA";
  return note;
}

}  // namespace

Description describe() {
  Description description{.level = std::string(host::to_string(host::level())),
                          .supported_level = std::string(host::to_string(host::supported_level())),
                          .level_note = level_note(),
                          .codecs = codec_states(),
                          .ucx = {},
                          .ucx_error = {},
                          .cuda = cuda_state(),
                          .nccl = nccl_state()};
  try {
    description.ucx = ucx_state();
  } catch (const Error& error) {
    description.ucx_error = error.what();
  }
  return description;
}

std::string as_text(const Description& description) {
  std::ostringstream text;
  const auto line = [&](std::string_view head, std::string_view rest) {
    text << std::left << std::setw(12) << head << rest << '\n';
  };
  text << "tightwire " << kVersion << ", wire version " << kWireVersion << '\n';
  line("compiler", std::string(kCompiler) + ", " + std::string(kBuildType));
  line("CPU level", description.level + " (this CPU has " + description.supported_level + ")" +
                        (description.level_note.empty() ? "" : "; " + description.level_note));
  text << "components\n";
  for (const Part& part : kParts) line("  " + std::string(part.name), part.note);
  text << "transports\n";
  line("  local", "ranks as threads of one process");
  line("  shm", "ranks of one machine, through memory that they share");
  if (description.ucx) line("  ucx", "UCX " + description.ucx->version + ": " + description.ucx->transports);
  if (description.ucx) line("  mixed", "shm among ranks of a node, ucx between nodes");
  if (!description.ucx_error.empty()) line("  ucx", description.ucx_error);
  if (const auto& nccl = description.nccl) line("  nccl", nccl->error.empty() ? "NCCL " + nccl->version : nccl->error);
  if (description.cuda) {
    text << "devices\n";
    line("  cuda", description.cuda->note);
    line("  staged", staging_note(description.ucx));
  }
  text << "codecs" << std::setw(22) << ' ' << "bits per element   relative error on Gaussian data\n";
  line("  exact", "              as the buffer      0");
  for (const CodecState& codec : description.codecs)
    text << "  " << std::left << std::setw(24) << codec.spec << "  " << std::setw(19) << std::setprecision(4)
         << codec.bits_per_element << codec.relative_error << '\n';
  return text.str();
}

std::string as_json(const Description& description) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["wire_version"] = kWireVersion;
  json["compiler"] = kCompiler;
  json["build_type"] = kBuildType;
  json["cpu_level"] = {
      {"in_force", description.level}, {"supported", description.supported_level}, {"note", description.level_note}};
  for (const Part& part : kParts)
    json["components"][std::string(part.name)] = {{"built", part.built}, {"note", part.note}};
  json["transports"]["local"] = nlohmann::ordered_json::object();
  json["transports"]["shm"] = nlohmann::ordered_json::object();
  if (description.ucx)
    json["transports"]["ucx"] = {{"version", description.ucx->version},
                                 {"transports", description.ucx->transports},
                                 {"cuda_memory", description.ucx->knows_cuda_memory}};
  if (!description.ucx_error.empty()) json["transports"]["ucx"] = {{"error", description.ucx_error}};
  if (const auto& nccl = description.nccl) {
    if (nccl->error.empty())
      json["transports"]["nccl"] = {{"version", nccl->version}};
    else
      json["transports"]["nccl"] = {{"error", nccl->error}};
  }
  json["devices"] = nlohmann::ordered_json::object();
  if (description.cuda)
    json["devices"]["cuda"] = {{"count", description.cuda->devices},
                               {"note", description.cuda->note},
                               {"staged", staging_note(description.ucx)}};
  json["codecs"] = nlohmann::ordered_json::array({{{"spec", "exact"}, {"relative_error", 0}}});
  for (const CodecState& codec : description.codecs)
    json["codecs"].push_back(
        {{"spec", codec.spec}, {"bits_per_element", codec.bits_per_element}, {"relative_error", codec.relative_error}});
  return json.dump(2) + "\n";
}

}  // namespace tightwire::tool
