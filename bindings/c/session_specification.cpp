#include "session_specification.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/hierarchy_text.hpp>
#include <tightwire/telemetry.hpp>

namespace tightwire::c {
namespace {

Error bad(std::string_view word, const std::string& why) {
  return Error(Errc::invalid_argument, "specification, \"" + std::string(word) + "\": " + why);
}

template <class Number>
Number number(std::string_view word, std::string_view value) {
  Number parsed{};
  const auto end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, parsed);
  if (result.ec != std::errc{} || result.ptr != end)
    throw bad(word, "\"" + std::string(value) + "\" is no such number");
  return parsed;
}

/// What has been read so far.
struct Reading : SessionOptions {
  std::string_view inside, levels;
};

/// The value that belongs to one of two words.
template <class Value>
Value either(std::string_view word, std::string_view value, std::pair<const char*, Value> first,
             std::pair<const char*, Value> second) {
  if (value == first.first) return first.second;
  if (value == second.first) return second.second;
  throw bad(word, std::string("must be ") + first.first + " or " + second.first);
}

bool on(std::string_view word, std::string_view value) {
  return either<bool>(word, value, {"on", true}, {"off", false});
}

void add_rule(std::string_view word, std::string_view value, Reading& options) {
  const std::size_t end = value.find('=');
  if (end == std::string_view::npos || end == 0) throw bad(word, "must be rule=PATTERN=CODEC");
  options.policy.rules.push_back(
      {.name = std::string(value.substr(0, end)), .codec = parse_codec(value.substr(end + 1))});
}

void set_nonfinite(std::string_view word, std::string_view value, Reading& options) {
  for (const NonFinitePolicy policy : {NonFinitePolicy::propagate, NonFinitePolicy::skip_step, NonFinitePolicy::error})
    if (value == to_string(policy)) {
      options.nonfinite = policy;
      return;
    }
  throw bad(word, "must be propagate, skip_step or error");
}

void set_timeout(std::string_view word, std::string_view value, Reading& options) {
  const auto seconds = number<double>(word, value);
  if (!(seconds > 0 && seconds <= 1e9)) throw bad(word, "must be seconds above 0, and at most 1e9");
  options.timeout = std::chrono::milliseconds(std::max(1L, std::lround(seconds * 1000)));
}

void set_algorithm(std::string_view word, std::string_view value, Reading& options) {
  for (const Algorithm algorithm :
       {Algorithm::automatic, Algorithm::two_shot, Algorithm::one_shot, Algorithm::ring, Algorithm::tree})
    if (value == to_string(algorithm)) {
      options.plan.algorithm = algorithm;
      return;
    }
  throw bad(word, "must be automatic, two_shot, one_shot, ring or tree");
}

/// All of telemetry's files, in one folder.
void set_telemetry(std::string_view word, std::string_view value, Reading& options) {
  const std::filesystem::path folder(value);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (value.empty() || !std::filesystem::is_directory(folder)) throw bad(word, "is no folder that can be made");
  options.observer = std::make_shared<Telemetry>(TelemetryOptions{.json_lines = folder / "steps-{rank}.jsonl",
                                                                  .prometheus = folder / "steps-{rank}.prom",
                                                                  .trace = folder / "trace-{rank}.json"});
}

struct Option {
  std::string_view name;
  void (*set)(std::string_view word, std::string_view value, Reading& options);
};

constexpr std::array kOptions = {
    Option{"exact",
           [](auto word, auto value, auto& options) {
             if (value.empty()) throw bad(word, "must be exact=PATTERN");
             options.policy.rules.push_back({.name = std::string(value)});
           }},
    Option{"rule", add_rule},
    Option{"small",
           [](auto word, auto value, auto& options) {
             if (either<bool>(word, value, {"compressed", true}, {"exact", false}))
               options.policy.exact_by_default.clear();
           }},
    Option{"operation",
           [](auto word, auto value, auto& options) {
             options.average = either<bool>(word, value, {"mean", true}, {"sum", false});
           }},
    Option{"feedback", [](auto word, auto value, auto& options) { options.error_feedback = on(word, value); }},
    Option{
        "residual",
        [](auto word, auto value, auto& options) {
          options.residual = either<ElementType>(word, value, {"fp32", ElementType::f32}, {"bf16", ElementType::bf16});
        }},
    Option{"rollback", [](auto word, auto value, auto& options) { options.rollback = on(word, value); }},
    Option{"nonfinite", set_nonfinite},
    Option{"momentum",
           [](auto word, auto value, auto& options) { options.momentum.factor = number<float>(word, value); }},
    Option{"nesterov", [](auto word, auto value, auto& options) { options.momentum.nesterov = on(word, value); }},
    Option{"optimizer-momentum",
           [](auto word, auto value, auto& options) {
             options.momentum.optimizer_momentum = number<double>(word, value);
           }},
    Option{"seed", [](auto word, auto value, auto& options) { options.seed = number<std::uint64_t>(word, value); }},
    Option{"timeout", set_timeout},
    Option{"algorithm", set_algorithm},
    Option{"levels", [](auto, auto value, auto& options) { options.levels = value; }},
    Option{"inside", [](auto, auto value, auto& options) { options.inside = value; }},
    Option{"telemetry", set_telemetry},
    Option{"bucket-bytes",
           [](auto word, auto value, auto& options) { options.bucket_bytes = number<std::size_t>(word, value); }},
};

void read_option(std::string_view word, Reading& options) {
  const std::size_t end = word.find('=');
  const std::string_view name = word.substr(0, end);
  const auto* option = std::find_if(kOptions.begin(), kOptions.end(), [&](const Option& o) { return o.name == name; });
  if (option != kOptions.end() && end != std::string_view::npos) {
    option->set(word, word.substr(end + 1), options);
    return;
  }
  std::string known;
  for (const Option& each : kOptions) known += (known.empty() ? "" : ", ") + std::string(each.name) + "=";
  throw bad(word, "not known; known are " + known);
}

/// Where ranks are, as far as words of its own say it rather than hier(...).
void set_levels(Reading& options, int ranks) {
  const Codec of_words = options.inside.empty() ? Codec{} : parse_codec(options.inside);
  if (!options.inside.empty() && options.hierarchy)
    throw bad("inside=" + std::string(options.inside), "belongs between the brackets of hier(...)");
  if (!options.inside.empty() && options.levels.empty())
    throw bad("inside=" + std::string(options.inside), "is of nodes, and levels= says none");
  if (options.levels.empty()) return;
  if (options.hierarchy && !options.hierarchy.automatic)
    throw bad("levels=" + std::string(options.levels), "hier(...) has levels already");
  const Codec inside = options.hierarchy ? options.hierarchy.inside : of_words;
  options.hierarchy = parse_levels(options.levels, ranks, inside);
}

}  // namespace

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  std::vector<std::string_view> words;
  for (std::size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;) {
    std::size_t end = at;
    int open = 0;
    for (; end < text.size() && (open > 0 || kSpace.find(text[end]) == std::string_view::npos); ++end)
      open += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
    words.push_back(text.substr(at, end - at));
    if (open > 0) throw bad(words.back(), "the closing ) is missing");  // or all that follows would be part of it
    at = text.find_first_not_of(kSpace, end);
  }
  return words;
}

SessionOptions parse_session(std::string_view specification, int ranks) {
  return parse_session_words(words_of(specification), ranks);
}

SessionOptions parse_session_words(const std::vector<std::string_view>& words, int ranks) {
  Reading options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    // A codec has no '=' before its ':' or '(', and comes first.
    const bool codec = i == 0 && words[i].find('=') >= words[i].find_first_of(":+(");
    if (codec)
      set_codec(options, words[i], ranks);
    else
      read_option(words[i], options);
  }
  set_levels(options, ranks);
  return options;
}

}  // namespace tightwire::c
