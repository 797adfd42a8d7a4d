#include "builtin_subjects.hpp"

#include <stdexcept>
#include <string>
#include <tuple>

#include <tightwire/core_codecs.hpp>

#include "unit/builtin_codec_claims.hpp"

namespace tightwire::testing {

const std::vector<Subject>& builtin_subjects() {
  static const std::vector<Subject> all = [] {
    std::vector<Subject> subjects;
    std::apply([&](auto... codec) { (subjects.push_back(subject<decltype(codec)>()), ...); }, BuiltinCodecs{});
    return subjects;
  }();
  return all;
}

const Subject& builtin_subject(std::string_view name) {
  for (const Subject& codec : builtin_subjects())
    if (codec.name == name) return codec;
  throw std::out_of_range("no built-in codec is called " + std::string(name));
}

}  // namespace tightwire::testing
