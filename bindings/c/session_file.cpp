#include "session_file.hpp"

#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include <toml++/toml.h>

#include "session_specification.hpp"

namespace tightwire::c {
namespace {

/// The words of a specification that a file stands for; the codec comes first.
class Words {
 public:
  Words(const std::string& path, const toml::table& file) : path_(path) {
    if (const toml::node* const codec = file.get("codec"))
      words_.push_back(text_of(*codec, "codec must be a string, as \"int8:block=256\""));
    for (const auto& [key, value] : file) add(std::string(key.str()), value);
  }
  const std::vector<std::string>& words() const { return words_; }

 private:
  [[noreturn]] void fail(const toml::node& at, const std::string& why) const {
    throw Error(Errc::invalid_argument, path_ + ", line " + std::to_string(at.source().begin.line) + ": " + why);
  }

  /// Of a string that is not empty.
  std::string text_of(const toml::node& node, const std::string& otherwise) const {
    std::string text = node.value_exact<std::string>().value_or("");
    if (text.empty()) fail(node, otherwise);
    return text;
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

  void add(const std::string& key, const toml::node& value) {
    if (key == "codec") return;
    if (key == "exact") return add_exact(value);
    if (key == "rule") return add_rules(value);
    if (value.is_table() || value.is_array_of_tables()) fail(value, "the only tables are [[rule]]");
    words_.push_back(key + "=" + value_of(value));
  }

  void add_exact(const toml::node& value) {
    const std::string otherwise = "\"exact\" must be a string, or a list of strings";
    const toml::array* const patterns = value.as_array();
    if (patterns == nullptr) return words_.push_back("exact=" + text_of(value, otherwise));
    for (const toml::node& pattern : *patterns) words_.push_back("exact=" + text_of(pattern, otherwise));
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
      words_.push_back("rule=" + name + "=" + text_of(*rule.get("codec"), otherwise));
    }
  }

  const std::string& path_;
  std::vector<std::string> words_;
};

std::vector<std::string> words_in(const std::string& path, const std::string& text) {
  try {
    return Words(path, toml::parse(text)).words();
  } catch (const toml::parse_error& error) {
    throw Error(Errc::invalid_argument,
                path + ", line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
  }
}

}  // namespace

SessionOptions parse_session_file(const std::string& path, const std::string& text, int ranks) {
  const std::vector<std::string> words = words_in(path, text);
  try {
    return parse_session_words({words.begin(), words.end()}, ranks);
  } catch (const Error& error) {
    throw Error(error.code(), path + ": " + error.what());
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
