#pragma once
#include <CLI/CLI.hpp>

namespace tightwire::tool {

/// `tightwire codecs`: what every codec costs and loses, measured when called.
void add_codecs(CLI::App& app, int& status);

}  // namespace tightwire::tool
