#include "session_specification.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/hierarchy_text.hpp>
#include <tightwire/telemetry.hpp>

namespace tightwire::c {
namespace {

Error bad(const std::string& why) { return Error(Errc::invalid_argument, why); }

/// Runs what reads a word: what it throws is told with the word's place.
template <class Read>
void at(const Word& word, Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    throw Error(error.code(), word.place + ": " + error.what());
  }
}

template <class Number>
Number number(std::string_view value) {
  Number parsed{};
  const auto end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, parsed);
  if (result.ec != std::errc{} || result.ptr != end) throw bad("\"" + std::string(value) + "\" is no such number");
  return parsed;
}

/// What has been read so far.
struct Reading : SessionOptions {
  const Word* inside = nullptr;
  const Word* levels = nullptr;
};

/// The value that belongs to one of two words.
template <class Value>
Value either(std::string_view value, std::pair<const char*, Value> first, std::pair<const char*, Value> second) {
  if (value == first.first) return first.second;
  if (value == second.first) return second.second;
  throw bad(std::string("must be ") + first.first + " or " + second.first);
}

bool on(std::string_view value) {
  if (value != "on" && value != "off") throw bad("must be on or off; in a file true or false, without quotes");
  return value == "on";
}

void add_rule(const Word& word, Reading& options) {
  const std::string_view value = word.value;
  const std::size_t end = value.find('=');
  if (end == std::string_view::npos || end == 0) throw bad("must be rule=PATTERN=CODEC");
  options.policy.rules.push_back(
      {.name = std::string(value.substr(0, end)), .codec = parse_codec(value.substr(end + 1))});
}

void set_nonfinite(const Word& word, Reading& options) {
  for (const NonFinitePolicy policy : {NonFinitePolicy::propagate, NonFinitePolicy::skip_step, NonFinitePolicy::error})
    if (word.value == to_string(policy)) {
      options.nonfinite = policy;
      return;
    }
  throw bad("must be propagate, skip_step or error");
}

void set_timeout(const Word& word, Reading& options) {
  const auto seconds = number<double>(word.value);
  if (!(seconds > 0 && seconds <= 1e9)) throw bad("must be seconds above 0, and at most 1e9");
  options.timeout = std::chrono::milliseconds(std::max(1L, std::lround(seconds * 1000)));
}

void set_algorithm(const Word& word, Reading& options) {
  for (const Algorithm algorithm :
       {Algorithm::automatic, Algorithm::two_shot, Algorithm::one_shot, Algorithm::ring, Algorithm::tree})
    if (word.value == to_string(algorithm)) {
      options.plan.algorithm = algorithm;
      return;
    }
  throw bad("must be automatic, two_shot, one_shot, ring or tree");
}

/// All of telemetry's files, in one folder.
void set_telemetry(const Word& word, Reading& options) {
  const std::filesystem::path folder(word.value);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (word.value.empty() || !std::filesystem::is_directory(folder)) throw bad("is no folder that can be made");
  options.observer = std::make_shared<Telemetry>(TelemetryOptions{.json_lines = folder / "steps-{rank}.jsonl",
                                                                  .prometheus = folder / "steps-{rank}.prom",
                                                                  .trace = folder / "trace-{rank}.json"});
}

struct Option {
  std::string_view name;
  void (*set)(const Word& word, Reading& options);
};

constexpr std::array kOptions = {
    Option{"exact",
           [](auto& word, auto& options) {
             if (word.value.empty()) throw bad("must be exact=PATTERN");
             options.policy.rules.push_back({.name = word.value});
           }},
    Option{"rule", add_rule},
    Option{"small",
           [](auto& word, auto& options) {
             if (either<bool>(word.value, {"compressed", true}, {"exact", false}))
               options.policy.exact_by_default.clear();
           }},
    Option{"operation",
           [](auto& word, auto& options) {
             options.average = either<bool>(word.value, {"mean", true}, {"sum", false});
           }},
    Option{"feedback", [](auto& word, auto& options) { options.error_feedback = on(word.value); }},
    Option{
        "residual",
        [](auto& word, auto& options) {
          options.residual = either<ElementType>(word.value, {"fp32", ElementType::f32}, {"bf16", ElementType::bf16});
        }},
    Option{"rollback", [](auto& word, auto& options) { options.rollback = on(word.value); }},
    Option{"nonfinite", set_nonfinite},
    Option{"momentum", [](auto& word, auto& options) { options.momentum.factor = number<float>(word.value); }},
    Option{"nesterov", [](auto& word, auto& options) { options.momentum.nesterov = on(word.value); }},
    Option{"optimizer-momentum",
           [](auto& word, auto& options) { options.momentum.optimizer_momentum = number<double>(word.value); }},
    Option{"seed", [](auto& word, auto& options) { options.seed = number<std::uint64_t>(word.value); }},
    Option{"timeout", set_timeout},
    Option{"algorithm", set_algorithm},
    Option{"levels", [](auto& word, auto& options) { options.levels = &word; }},
    Option{"inside", [](auto& word, auto& options) { options.inside = &word; }},
    Option{"telemetry", set_telemetry},
    Option{"bucket-bytes", [](auto& word, auto& options) { options.bucket_bytes = number<std::size_t>(word.value); }},
};

[[noreturn]] void refuse_unknown() {
  std::string known;
  for (const Option& each : kOptions) known += (known.empty() ? "" : ", ") + std::string(each.name) + "=";
  throw bad("not known; known are " + known);
}

void read_option(const Word& word, Reading& options) {
  const auto* option =
      std::find_if(kOptions.begin(), kOptions.end(), [&](const Option& o) { return o.name == word.name; });
  if (option == kOptions.end()) refuse_unknown();
  option->set(word, options);
}

/// Where ranks are, as far as words of its own say it rather than hier(...).
void set_levels(Reading& options, int ranks) {
  Codec inside = options.hierarchy ? options.hierarchy.inside : Codec{};
  if (options.inside != nullptr)
    at(*options.inside, [&] {
      inside = parse_codec(options.inside->value);
      if (options.hierarchy) throw bad("belongs between the brackets of hier(...)");
      if (options.levels == nullptr) throw bad("is of nodes, and levels= says none");
    });
  if (options.levels != nullptr)
    at(*options.levels, [&] {
      if (options.hierarchy && !options.hierarchy.automatic) throw bad("hier(...) has levels already");
      options.hierarchy = parse_levels(options.levels->value, ranks, inside);
    });
}

/// Options that do not go together are told where the last of them is.
class Compatible {
 public:
  void check(const Word& word, const SessionOptions& options) {
    try {
      check_options(options, "");
      trouble_.reset();
    } catch (const Error& error) {
      if (!trouble_) trouble_.emplace(error.code(), word.place + ": " + error.what());
    }
  }
  void require() const {
    if (trouble_) throw Error(*trouble_);
  }

 private:
  std::optional<Error> trouble_;
};

Word word_of(std::string_view text, bool may_be_codec) {
  Word word{.name = {}, .value = std::string(text), .place = "specification, \"" + std::string(text) + "\""};
  const std::size_t end = text.find('=');
  // A codec has no '=' before its ':' or '(', and comes first.
  if (may_be_codec && end >= text.find_first_of(":+(")) return word;
  if (end == std::string_view::npos) at(word, refuse_unknown);
  word.name = text.substr(0, end);
  word.value = text.substr(end + 1);
  return word;
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
    if (open > 0)
      throw bad("specification, \"" + std::string(words.back()) +
                "\": the closing ) is missing");  // or all after it is part
    at = text.find_first_not_of(kSpace, end);
  }
  return words;
}

SessionOptions parse_session(std::string_view specification, int ranks) {
  std::vector<Word> words;
  for (const std::string_view text : words_of(specification)) words.push_back(word_of(text, words.empty()));
  return read_words(words, ranks);
}

SessionOptions read_words(const std::vector<Word>& words, int ranks) {
  Reading options;
  Compatible compatible;
  for (const Word& word : words) {
    at(word, [&] { word.name.empty() ? set_codec(options, word.value, ranks) : read_option(word, options); });
    compatible.check(word, options);
  }
  set_levels(options, ranks);
  compatible.require();
  return options;
}

}  // namespace tightwire::c
