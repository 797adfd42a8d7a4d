// The command line tool.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <tightwire/version.hpp>

#include "bench.hpp"
#include "codecs.hpp"
#include "converge.hpp"
#include "info.hpp"
#include "plan.hpp"
#include "run.hpp"

namespace {

int run_tool(std::vector<std::string> arguments) {
  const std::vector<std::string> all_arguments = arguments;
  // What follows "--" is the user's program, of which CLI11 must see nothing.
  std::vector<std::string> after_dashes;
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (dashes != arguments.end()) after_dashes.assign(dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them

  int status = 0;
  CLI::App app("tightwire: all-reduce for training that sends a fraction of the bytes", "tightwire");
  app.set_version_flag("--version", std::string("tightwire ") + tightwire::kVersion);
  app.require_subcommand(0, 1);
  tightwire::tool::add_run(app, after_dashes, status);
  tightwire::tool::add_info(app, status);
  tightwire::tool::add_codecs(app, status);
  tightwire::tool::add_bench(app, all_arguments, status);
  tightwire::tool::add_plan(app, status);
  tightwire::tool::add_converge(app, status);
  constexpr int kWrongUsage = 2;
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  if (!app.get_subcommands().empty()) return status;
  std::cerr << app.help();
  return kWrongUsage;
}

}  // namespace

int main(int count, char** values) {
  try {
    return run_tool({values + 1, values + count});
  } catch (const std::exception& error) {
    std::cerr << "tightwire: " << error.what() << '\n';
    return 1;
  }
}
