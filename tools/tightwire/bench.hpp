#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tightwire::tool {

/// `tightwire bench`: all-reduce between the ranks of a job, by size and codec; and what links and codecs cost.
/// `arguments` are those of this program, for the ranks it starts.
void add_bench(CLI::App& app, const std::vector<std::string>& arguments, int& status);

}  // namespace tightwire::tool
