#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/element.hpp>
#include <tightwire/plan.hpp>

namespace tightwire {

/// One trainable tensor, known to the Session by name.
struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  ElementType type = ElementType::f32;
  std::size_t count = 0;  ///< product of the shape
  Operation operation = Operation::all_reduce;
  int root = 0;      ///< of a broadcast
  int priority = 0;  ///< see Session::set_priority
};

/// `*` matches any run of characters, `?` any one.
constexpr bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++, retry = n;
    } else if (star != std::string_view::npos) {
      p = star + 1, n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// "A parameter of this kind gets this codec." All conditions that are given must hold.
struct Rule {
  std::string name = "*";                                            ///< pattern, see `matches`
  std::optional<std::size_t> dimensions = {};                        ///< length of the shape
  std::size_t fewer_than = std::numeric_limits<std::size_t>::max();  ///< elements
  std::optional<ElementType> type = {};
  Codec codec = {};  ///< exact by default

  bool holds_for(const Parameter& parameter) const {
    return matches(name, parameter.name) && (!dimensions || *dimensions == parameter.shape.size()) &&
           parameter.count < fewer_than && (!type || *type == parameter.type);
  }
};

/// Which parameter gets which codec: the first rule that holds, else the Session's codec. By default 1-dimensional
/// parameters (biases, norm scales) and those under 1,024 elements stay exact: they are a thousandth of the bytes and
/// suffer most. Give `exact_by_default = {}` to compress them too.
struct Policy {
  std::vector<Rule> rules;
  std::vector<Rule> exact_by_default = {Rule{.dimensions = 1}, Rule{.fewer_than = 1024}};

  const Codec& choose(const Parameter& parameter, const Codec& otherwise) const {
    for (const auto* list : {&rules, &exact_by_default})
      for (const Rule& rule : *list)
        if (rule.holds_for(parameter)) return rule.codec;
    return otherwise;
  }
};

}  // namespace tightwire
