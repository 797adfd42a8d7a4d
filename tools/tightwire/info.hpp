#pragma once
#include <CLI/CLI.hpp>

namespace tightwire::tool {

/// `tightwire info`: what this copy is and can do here.
void add_info(CLI::App& app, int& status);

}  // namespace tightwire::tool
