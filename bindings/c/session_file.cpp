#include "session_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include <toml++/toml.h>

#include "session_specification.hpp"

namespace tightwire::c {
namespace {

/// The words of a specification that a file stands for; the codec comes first, rules come last.
class Words {
 public:
  Words(const std::string& path, const toml::table& file) : path_(path) {
    if (const toml::node* const codec = file.get("codec"))
      add("", *codec, "codec", text_of(*codec, "codec must be a string, as \"int8:block=256\""));
    for (const auto& [key, value] : file)
      if (key != "codec" && key != "rule") add_key(std::string(key.str()), value);
    if (const toml::node* const rules = file.get("rule")) add_rules(*rules);
  }
  const std::vector<Word>& words() const { return words_; }

 private:
  std::string line_of(const toml::node& node) const {
    return path_ + ", line " + std::to_string(node.source().begin.line) + ": ";
  }
  [[noreturn]] void fail(const toml::node& at, const std::string& why) const {
    throw Error(Errc::invalid_argument, line_of(at) + why);
  }

  /// Of a string that is not empty.
  std::string text_of(const toml::node& node, const std::string& otherwise) const {
    std::string text = node.value_exact<std::string>().value_or("");
    if (text.empty()) fail(node, otherwise);
    return text;
  }

  /// Errors quote what stands in the file, as they cannot quote the word.
  void add(const std::string& name, const toml::node& node, const std::string& key, const std::string& value) {
    std::string written = value;
    if (node.is_string()) written = "\"" + *node.value_exact<std::string>() + "\"";
    if (node.is_boolean()) written = *node.value_exact<bool>() ? "true" : "false";
    words_.push_back({.name = name, .value = value, .place = line_of(node) + key + " = " + written});
  }

  std::string value_of(const toml::node& node) const {
    if (const auto text = node.value_exact<std::string>()) return *text;
    if (const auto number = node.value_exact<std::int64_t>()) return std::to_string(*number);
    if (const auto truth = node.value_exact<bool>()) return *truth ? "on" : "off";
    const auto number = node.value_exact<double>();
    if (!number || !std::isfinite(*number)) fail(node, "a value must be a string in quotes, a number, true or false");
    char text[64];
    return {text, std::to_chars(text, text + sizeof text, *number).ptr};
  }

  void add_key(const std::string& key, const toml::node& value) {
    if (key == "exact") return add_exact(value);
    if (value.is_table() || value.is_array_of_tables()) fail(value, "the only tables are [[rule]]");
    const auto in_a_key = [](char c) { return (c >= 'a' && c <= 'z') || c == '-'; };
    if (!std::all_of(key.begin(), key.end(), in_a_key)) fail(value, "there is no key \"" + key + "\"");
    add(key, value, key, value_of(value));
  }

  void add_exact(const toml::node& value) {
    const std::string otherwise = "\"exact\" must be a string, or a list of strings";
    const toml::array* const patterns = value.as_array();
    if (patterns == nullptr) return add("exact", value, "exact", text_of(value, otherwise));
    for (const toml::node& pattern : *patterns) add("exact", pattern, "exact", text_of(pattern, otherwise));
  }

  void add_rules(const toml::node& value) {
    const toml::array* const rules = value.as_array();
    if (rules == nullptr || !value.is_array_of_tables()) fail(value, "rules are tables: [[rule]], with name and codec");
    const std::string otherwise = "a rule has a name and a codec, both strings, and nothing else";
    for (const toml::node& node : *rules) {
      const toml::table& rule = *node.as_table();
      if (rule.size() != 2 || !rule.contains("name") || !rule.contains("codec")) fail(node, otherwise);
      const std::string name = text_of(*rule.get("name"), otherwise);
      if (name.find('=') != std::string::npos) fail(*rule.get("name"), "the name of a rule has a \"=\"");
      const toml::node& codec = *rule.get("codec");
      add("rule", codec, "codec", name + "=" + text_of(codec, otherwise));
    }
  }

  const std::string& path_;
  std::vector<Word> words_;
};

}  // namespace

SessionOptions parse_session_file(const std::string& path, const std::string& text, int ranks) {
  try {
    return read_words(Words(path, toml::parse(text)).words(), ranks);
  } catch (const toml::parse_error& error) {
    throw Error(Errc::invalid_argument,
                path + ", line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
  }
}

SessionOptions read_session_file(const std::string& path, int ranks) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || !text) throw Error(Errc::invalid_argument, path + ": cannot be read, or is empty");
  return parse_session_file(path, text.str(), ranks);
}

}  // namespace tightwire::c
