#include "settings.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <tightwire/core_codecs.hpp>

#include "../c/session_specification.hpp"

namespace tightwire::mpi {
namespace {

constexpr std::string_view kUsage =
    "; it reads, for example, TIGHTWIRE_MPI=\"int8:block=256 threshold=65536\" (docs/mpi.md)";

Error bad(const std::string& why) { return {Errc::invalid_argument, "TIGHTWIRE_MPI: " + why + std::string(kUsage)}; }

/// Words of a Session's specification that make sense for a call without a name, a shape or a step that can be undone.
constexpr std::array<std::string_view, 4> kOfSessions = {"seed", "timeout", "levels", "inside"};

std::size_t number(const std::string& word, std::string_view value) {
  std::size_t parsed = 0;
  const auto result = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (result.ec != std::errc{} || result.ptr != value.data() + value.size() || parsed == 0)
    throw bad("\"" + word + "\" must be a whole number above 0");
  return parsed;
}

}  // namespace

Settings parse_settings(std::string_view text, int ranks) {
  Settings settings;
  bool has_codec = false;
  for (const std::string_view each : c::words_of(text)) {
    const std::string word(each);
    const std::size_t end = word.find('=');
    const std::string name = word.substr(0, end);
    const std::string value = end == std::string::npos ? "" : word.substr(end + 1);
    if (name == "threshold") {
      settings.threshold = number(word, value);
    } else if (name == "calls-per-step") {
      settings.calls_per_step = number(word, value);
    } else if (name == "report") {
      if (value != "on" && value != "off") throw bad("\"" + word + "\" must be report=on or report=off");
      settings.report = value == "on";
    } else {
      const bool codec = end >= word.find_first_of(":+(");
      if (codec && has_codec) throw bad("\"" + word + "\" is a second codec");
      if (!codec && std::find(kOfSessions.begin(), kOfSessions.end(), name) == kOfSessions.end())
        throw bad("\"" + word +
                  "\" is not known; known are a codec, threshold=, calls-per-step=, report=, seed=, "
                  "timeout=, levels= and inside=");
      // A Session's specification has its codec first.
      settings.specification = codec ? word + " " + settings.specification : settings.specification + word + " ";
      has_codec = has_codec || codec;
    }
  }
  if (!has_codec) throw bad("it names no codec");
  if (settings.threshold == 0) throw bad("it names no threshold in bytes");
  const SessionOptions options = settings.session(ranks);
  settings.timeout = options.timeout;
  if (options.codec.spec() == "exact") throw bad("the codec compresses nothing");
  if (options.codec.low_rank()) throw bad("powersgd needs shapes, and MPI knows none");
  if (options.codec.sparse() && settings.calls_per_step == 0)
    throw bad("what " + options.codec.spec() + " does not send would be lost without calls-per-step=");
  return settings;
}

SessionOptions Settings::session(int ranks) const {
  SessionOptions options;
  try {
    options = c::parse_session(specification, ranks);
  } catch (const Error& error) {
    throw bad(error.what());
  }
  options.policy.exact_by_default = {};
  options.average = false;
  options.error_feedback = calls_per_step != 0;
  options.rollback = false;
  return options;
}

}  // namespace tightwire::mpi
