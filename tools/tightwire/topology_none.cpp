#include "topology.hpp"

namespace tightwire::tool {

std::optional<Processors> processors(std::string& missing) {
  missing = "this copy was built without hwloc (Debian: libhwloc-dev)";
  return std::nullopt;
}

}  // namespace tightwire::tool
