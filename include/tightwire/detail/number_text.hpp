#pragma once
#include <charconv>
#include <string>

namespace tightwire::detail {

/// The shortest text that is read as the same number again, in any locale.
template <class Number>
std::string number_text(Number number) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  return {text, end};
}

}  // namespace tightwire::detail
