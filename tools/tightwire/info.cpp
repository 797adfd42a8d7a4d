#include "info.hpp"

#include <iostream>
#include <memory>

#include "describe.hpp"

namespace tightwire::tool {

void add_info(CLI::App& app, int& status) {
  CLI::App* info = app.add_subcommand("info", "Tell version, CPU level, components, transports and codecs");
  const auto json = std::make_shared<bool>(false);
  info->add_flag("--json", *json, "As JSON");
  info->callback([json, &status] {
    const Description description = describe();
    std::cout << (*json ? as_json(description) : as_text(description)) << std::flush;
    status = std::cout ? 0 : 1;
  });
}

}  // namespace tightwire::tool
