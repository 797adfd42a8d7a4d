#pragma once
#include <string_view>
#include <vector>

#include <tightwire/testing/reference_codec.hpp>

namespace tightwire::testing {

/// Every built-in codec with what is claimed of it. Compiled once: the naive codecs take a while.
const std::vector<Subject>& builtin_subjects();
/// Throws std::out_of_range.
const Subject& builtin_subject(std::string_view name);

}  // namespace tightwire::testing
