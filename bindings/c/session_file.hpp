#pragma once
#include <string>

#include <tightwire/session_options.hpp>

namespace tightwire::c {

/// The options of a Session from a file of TOML, for a job of so many ranks (docs/python.md). Keys are the words of a
/// specification. Throws Error(invalid_argument) that names file and line.
SessionOptions read_session_file(const std::string& path, int ranks);

/// The same from what a file holds; `path` is for messages.
SessionOptions parse_session_file(const std::string& path, const std::string& text, int ranks);

}  // namespace tightwire::c
