#include <hwloc.h>

#include <memory>

#include "topology.hpp"

namespace tightwire::tool {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};

unsigned count(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const int number = hwloc_get_nbobjs_by_type(topology, type);
  return number < 0 ? 0 : static_cast<unsigned>(number);
}

std::string list_of(hwloc_const_cpuset_t cpus) {
  char text[1024];
  hwloc_bitmap_list_snprintf(text, sizeof text, cpus);
  return text;
}

}  // namespace

std::optional<Processors> processors(std::string& missing) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    missing = "hwloc cannot begin";
    return std::nullopt;
  }
  const std::unique_ptr<hwloc_topology, Destroy> topology(raw);
  if (hwloc_topology_load(raw) != 0) {
    missing = "hwloc cannot read this machine";
    return std::nullopt;
  }
  Processors found{count(raw, HWLOC_OBJ_PACKAGE), count(raw, HWLOC_OBJ_CORE), count(raw, HWLOC_OBJ_PU), {}};
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
    found.nodes.push_back({node->os_index, node->attr->numanode.local_memory, list_of(node->cpuset)});
  return found;
}

}  // namespace tightwire::tool
