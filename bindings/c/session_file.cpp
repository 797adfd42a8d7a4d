#include "session_file.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "session_specification.hpp"

namespace tightwire::c {
namespace {

/// The part of TOML 1.0 that options need: keys with strings, numbers, truth values and lists of strings, and tables
/// [[rule]]. All else is refused, with its line.
class Reader {
 public:
  Reader(const std::string& path, std::string_view text) : path_(path), rest_(text) {}

  /// What is read, as words of a specification; the codec comes first.
  std::vector<std::string> words() {
    for (skip(true); !rest_.empty(); end_of_line()) {
      if (rest_.front() == '[') {
        begin_rule();
        continue;
      }
      const std::string key = read_key();
      if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) fail("\"" + key + "\" is given twice");
      keys_.push_back(key);
      expect('=');
      skip(false);
      in_rule_ ? take_of_rule(key) : take(key);
    }
    end_rule();
    if (!codec_.empty()) words_.insert(words_.begin(), codec_);
    return std::move(words_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(Errc::invalid_argument, path_ + ", line " + std::to_string(line_) + ": " + why);
  }

  char next() {
    if (rest_.empty()) fail("it ends too early");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (c == '\n') ++line_;
    return c;
  }

  /// Spaces and a comment; with `lines` also ends of lines.
  void skip(bool lines) {
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (c == '#')
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n'))
        next();
      else
        return;
    }
  }

  void end_of_line() {
    skip(false);
    if (!rest_.empty() && rest_.front() != '\n') fail("something comes after the value");
    skip(true);
  }

  void expect(char wanted) {
    skip(false);
    if (rest_.empty() || rest_.front() != wanted) fail(std::string("\"") + wanted + "\" is missing");
    rest_.remove_prefix(1);
  }

  std::string bare(std::string_view also) {
    const auto part = [&](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || also.find(c) != std::string_view::npos;
    };
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), part);
    std::string word(rest_.begin(), end);
    rest_.remove_prefix(word.size());
    return word;
  }

  std::string read_key() {
    std::string key = bare("-_");
    if (key.empty()) fail("a key must begin here; keys are the words of a specification");
    return key;
  }

  std::string string() {
    const char quote = next();
    std::string text;
    for (char c = next(); c != quote; c = next()) {
      if (c == '\n') fail("a string must end on its line");
      if (c == '\\' && quote == '"') {
        c = next();
        if (c != '"' && c != '\\') fail(std::string("\"\\") + c + "\" is not read here; quote with ' instead");
      }
      text += c;
    }
    return text;
  }

  bool at_string() const { return !rest_.empty() && (rest_.front() == '"' || rest_.front() == '\''); }

  std::string value() {
    if (at_string()) return string();
    std::string word = bare("+-._");
    if (word == "true") return "on";
    if (word == "false") return "off";
    word.erase(std::remove(word.begin(), word.end(), '_'), word.end());
    if (word.empty() || word.find_first_of("0123456789") == std::string::npos)
      fail("a value must be a string in quotes, a number, true or false");
    return word.substr(word.front() == '+' ? 1 : 0);
  }

  /// One string, or a list of them.
  std::vector<std::string> strings(const std::string& key) {
    std::vector<std::string> all;
    if (at_string()) return {string()};
    expect('[');
    for (skip(true); rest_.empty() || rest_.front() != ']'; skip(true)) {
      if (!at_string()) fail("\"" + key + "\" must be a string, or a list of strings");
      all.push_back(string());
      skip(true);
      if (!rest_.empty() && rest_.front() == ',')
        next();
      else if (rest_.empty() || rest_.front() != ']')
        fail("\",\" or \"]\" is missing");
    }
    next();
    return all;
  }

  void take(const std::string& key) {
    if (key == "codec") {
      if (!at_string() || (codec_ = string()).empty()) fail("codec must be a string, as \"int8:block=256\"");
    } else if (key == "exact") {
      for (const std::string& pattern : strings(key)) words_.push_back("exact=" + pattern);
    } else if (key == "rule") {
      fail("rules are tables: [[rule]], with name and codec");
    } else {
      words_.push_back(key + "=" + value());
    }
  }

  void take_of_rule(const std::string& key) {
    if ((key != "name" && key != "codec") || !at_string())
      fail("a rule has a name and a codec, both strings; what is of the whole Session comes before the first one");
    (key == "name" ? rule_.first : rule_.second) = string();
  }

  void begin_rule() {
    constexpr std::string_view kRule = "[[rule]]";
    if (!rest_.starts_with(kRule)) fail("the only tables are [[rule]]");
    rest_.remove_prefix(kRule.size());
    end_rule();
    in_rule_ = true;
    keys_.clear();
  }

  void end_rule() {
    if (!in_rule_) return;
    if (rule_.first.empty() || rule_.second.empty()) fail("the rule above has no name or no codec");
    if (rule_.first.find('=') != std::string::npos) fail("the name of the rule above has a \"=\"");
    words_.push_back("rule=" + rule_.first + "=" + rule_.second);
    rule_ = {};
  }

  const std::string& path_;
  std::string_view rest_;
  int line_ = 1;
  bool in_rule_ = false;
  std::pair<std::string, std::string> rule_;
  std::vector<std::string> keys_;  // of this table
  std::string codec_;
  std::vector<std::string> words_;
};

}  // namespace

SessionOptions parse_session_file(const std::string& path, const std::string& text, int ranks) {
  const std::vector<std::string> words = Reader(path, text).words();
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
