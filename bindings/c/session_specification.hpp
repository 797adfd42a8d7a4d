#pragma once
#include <string_view>

#include <tightwire/session_options.hpp>

namespace tightwire::c {

/// Reads "int8:block=256 exact=*.bias feedback=off ...", as tightwire_session_open documents it,
/// for a job of so many ranks.
/// Throws Error(invalid_argument) that names the word and what is known.
SessionOptions parse_session(std::string_view specification, int ranks);

}  // namespace tightwire::c
