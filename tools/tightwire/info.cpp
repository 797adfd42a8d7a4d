#include "info.hpp"

#include <iostream>
#include <memory>

#include <tightwire/error.hpp>

#include "describe.hpp"
#include "topology.hpp"

namespace tightwire::tool {
namespace {

int tell_topology(bool json) {
  try {
    const std::string place = placement();
    if (place.empty()) return 0;  // rank 0 tells
    const Topology here = topology();
    std::cout << (json ? as_json(here, place) : as_text(here) + place) << std::flush;
  } catch (const Error& error) {
    std::cerr << std::string("tightwire info: ") + error.what() + "\n";
    return 1;
  }
  return std::cout ? 0 : 1;
}

}  // namespace

void add_info(CLI::App& app, int& status) {
  CLI::App* info = app.add_subcommand("info", "Tell version, CPU level, components, transports and codecs");
  const auto json = std::make_shared<bool>(false), of_machine = std::make_shared<bool>(false);
  info->add_flag("--json", *json, "As JSON");
  info->add_flag("--topology", *of_machine,
                 "Instead: processors, network devices, GPUs and their links; in a job, ranks by node");
  info->callback([json, of_machine, &status] {
    if (*of_machine) {
      status = tell_topology(*json);
      return;
    }
    const Description description = describe();
    std::cout << (*json ? as_json(description) : as_text(description)) << std::flush;
    status = std::cout ? 0 : 1;
  });
}

}  // namespace tightwire::tool
