#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tightwire::tool {

/// What `tightwire run` itself returns when it cannot run the job; other values are the ranks'.
inline constexpr int kCannotRun = 125;

/// `tightwire run`: the ranks of a job on this machine. `after_dashes` is what followed the first "--".
void add_run(CLI::App& app, const std::vector<std::string>& after_dashes, int& status);

}  // namespace tightwire::tool
