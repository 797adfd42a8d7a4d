#pragma once
#include <CLI/CLI.hpp>

namespace tightwire::tool {

/// `tightwire converge`: hands over to the Python package tightwire.convergence, with the path of the trainer.
void add_converge(CLI::App& app, int& status);

}  // namespace tightwire::tool
