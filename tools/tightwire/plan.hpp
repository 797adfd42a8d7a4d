#pragma once
#include <CLI/CLI.hpp>

namespace tightwire::tool {

/// `tightwire plan`: what a step would cost with each scheme, by the cost model, and what to use.
void add_plan(CLI::App& app, int& status);

}  // namespace tightwire::tool
