#include "topology.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>

#include <nlohmann/json.hpp>
#include <tightwire/agreement.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/open_transport.hpp>
#include <tightwire/rendezvous.hpp>

namespace tightwire::tool {
namespace {

namespace fs = std::filesystem;

std::string word_of(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}
/// Of InfiniBand "4: ACTIVE": the name.
std::string port_state(const fs::path& path) {
  std::ifstream file(path);
  std::string number, name;
  file >> number >> name;
  return name.empty() ? number : name;
}
std::optional<long> number_of(const fs::path& path) {
  std::ifstream file(path);
  long number = 0;
  return file >> number && number >= 0 ? std::optional(number) : std::nullopt;
}

std::vector<NetworkDevice> network_devices() {
  std::vector<NetworkDevice> devices;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/class/net", ignored)) {
    const fs::path& at = entry.path();
    NetworkDevice device{.name = at.filename(), .state = word_of(at / "operstate"), .gbit = {}, .numa = {}};
    if (const auto mbit = number_of(at / "speed"); mbit && *mbit > 0) device.gbit = 1e-3 * static_cast<double>(*mbit);
    if (const auto node = number_of(at / "device/numa_node")) device.numa = static_cast<int>(*node);
    devices.push_back(std::move(device));
  }
  for (const auto& entry : fs::directory_iterator("/sys/class/infiniband", ignored))
    for (const auto& port : fs::directory_iterator(entry.path() / "ports", ignored)) {
      NetworkDevice device{.name = entry.path().filename().string() + ":" + port.path().filename().string(),
                           .state = port_state(port.path() / "state"),
                           .gbit = {},
                           .numa = {},
                           .infiniband = true};
      if (const auto gbit = number_of(port.path() / "rate")) device.gbit = static_cast<double>(*gbit);  // "200 Gb/sec"
      if (const auto node = number_of(entry.path() / "device/numa_node")) device.numa = static_cast<int>(*node);
      devices.push_back(std::move(device));
    }
  std::sort(devices.begin(), devices.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return devices;
}

std::string placement_of(Transport& transport) {
  const Hierarchy hierarchy = detect_nodes(transport);
  if (transport.rank() != 0) return {};
  const std::string job = "job         " + std::to_string(transport.size()) + " ranks, " + transport.describe() + "\n";
  std::string by_node;
  std::vector<int> names;
  std::vector<std::size_t> counts;
  for (const int name : hierarchy.node_of_rank) {
    const auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == names.size()) {
      names.push_back(name);
      counts.push_back(0);
    }
    ++counts[at];
  }
  for (std::size_t node = 0; node < names.size(); ++node) {
    by_node += "  node " + std::to_string(node) + "    ranks";
    for (std::size_t rank = 0; rank < hierarchy.node_of_rank.size(); ++rank)
      if (hierarchy.node_of_rank[rank] == names[node]) by_node += " " + std::to_string(rank);
    by_node += "\n";
  }
  std::string sizes;
  for (const std::size_t count : counts) sizes += (sizes.empty() ? "" : "+") + std::to_string(count);
  const bool even = std::all_of(counts.begin(), counts.end(), [&](std::size_t count) { return count == counts[0]; });
  if (even) sizes = std::to_string(counts[0]);
  std::string suggestion = "hierarchy   ";
  if (names.size() == 1)
    suggestion += "none: all ranks share a node";
  else if (names.size() == hierarchy.node_of_rank.size())
    suggestion += "none: every rank has a node, and its link, of its own";
  else
    suggestion += std::to_string(names.size()) + " nodes of " + sizes + " ranks: levels=auto, or levels=node:" + sizes +
                  " where ranks are numbered node by node";
  return job + by_node + suggestion + "\n";
}

}  // namespace

std::string placement() {
  const Rendezvous rendezvous = rendezvous::environment();
  if (rendezvous.size == 1) return "job         one rank; within tightwire run, mpirun or srun: who shares a node\n";
  return placement_of(*open_transport(rendezvous));
}

Topology topology() {
  Topology topology;
  topology.processors = processors(topology.processors_missing);
  topology.network = network_devices();
  topology.gpus = gpus(topology.gpus_missing);
  return topology;
}

std::string as_text(const Topology& topology) {
  std::ostringstream text;
  if (const auto& p = topology.processors) {
    text << "processors  " << p->packages << " packages, " << p->cores << " cores, " << p->threads << " threads\n";
    for (const NumaNode& node : p->nodes)
      text << "  NUMA " << std::left << std::setw(6) << node.number << std::fixed << std::setprecision(1)
           << static_cast<double>(node.bytes) / (1 << 30) << " GiB, CPUs " << node.cpus << '\n';
  } else {
    text << "processors  not known: " << topology.processors_missing << '\n';
  }
  text << "network\n";
  for (const NetworkDevice& device : topology.network) {
    text << "  " << std::left << std::setw(10) << device.name << (device.infiniband ? "InfiniBand, " : "")
         << device.state << ", ";
    device.gbit ? text << std::defaultfloat << *device.gbit << " Gbit/s" : text << "rate not told";
    if (device.numa) text << ", NUMA " << *device.numa;
    text << '\n';
  }
  if (topology.gpus.empty()) text << "GPUs        none known: " << topology.gpus_missing << '\n';
  if (!topology.gpus.empty()) {
    text << "GPUs\n" << std::string(8, ' ');
    for (std::size_t i = 0; i < topology.gpus.size(); ++i) text << std::left << std::setw(6) << i;
    text << '\n';
    for (std::size_t i = 0; i < topology.gpus.size(); ++i) {
      text << "  " << std::left << std::setw(6) << i;
      for (const std::string& link : topology.gpus[i].to) text << std::setw(6) << link;
      text << "  " << topology.gpus[i].name << ", " << topology.gpus[i].bus << '\n';
    }
  }
  return text.str();
}

std::string as_json(const Topology& topology, const std::string& placement) {
  nlohmann::ordered_json json;
  if (const auto& p = topology.processors) {
    json["processors"] = {{"packages", p->packages}, {"cores", p->cores}, {"threads", p->threads}};
    for (const NumaNode& node : p->nodes)
      json["processors"]["numa"].push_back({{"number", node.number}, {"bytes", node.bytes}, {"cpus", node.cpus}});
  } else {
    json["processors"] = {{"missing", topology.processors_missing}};
  }
  json["network"] = nlohmann::ordered_json::array();
  for (const NetworkDevice& device : topology.network) {
    nlohmann::ordered_json entry = {{"name", device.name}, {"state", device.state}, {"infiniband", device.infiniband}};
    if (device.gbit) entry["gbit_per_s"] = *device.gbit;
    if (device.numa) entry["numa"] = *device.numa;
    json["network"].push_back(std::move(entry));
  }
  json["gpus"] = nlohmann::ordered_json::array();
  for (const Gpu& gpu : topology.gpus) json["gpus"].push_back({{"name", gpu.name}, {"bus", gpu.bus}, {"to", gpu.to}});
  if (topology.gpus.empty()) json["gpus_missing"] = topology.gpus_missing;
  json["placement"] = placement;
  return json.dump(2) + "\n";
}

}  // namespace tightwire::tool
