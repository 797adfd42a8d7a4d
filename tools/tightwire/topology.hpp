#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tightwire::tool {

struct NumaNode {
  unsigned number = 0;
  std::uint64_t bytes = 0;
  std::string cpus;  ///< "0-7,16"
};

struct Processors {
  unsigned packages = 0, cores = 0, threads = 0;
  std::vector<NumaNode> nodes;
};

struct NetworkDevice {
  std::string name;
  std::string state;           ///< as the kernel has it: "up", "down"
  std::optional<double> gbit;  ///< unless the device does not tell
  std::optional<int> numa;     ///< unless it is none, or of no node
  bool infiniband = false;
};

struct Gpu {
  std::string name, bus;
  std::vector<std::string> to;  ///< by GPU, as `nvidia-smi topo -m` has it: X, NV4, PIX, PXB, PHB, NODE, SYS
};

/// What this machine is made of, as far as it matters for sending gradients.
struct Topology {
  std::optional<Processors> processors;
  std::string processors_missing;  ///< why they are not known
  std::vector<NetworkDevice> network;
  std::vector<Gpu> gpus;
  std::string gpus_missing;
};

/// Of hwloc. Empty with a reason where this copy was built without, or hwloc cannot tell.
std::optional<Processors> processors(std::string& missing);

/// Of NVML, if its library is there. Empty with a reason otherwise.
std::vector<Gpu> gpus(std::string& missing);

Topology topology();
std::string as_text(const Topology& topology);
std::string as_json(const Topology& topology, const std::string& placement);

/// Which ranks share a node, and the hierarchy that follows, of the job this process was started in. Collective; rank 0
/// gets the text, the others nothing. Of a process alone: how to see it.
std::string placement();

}  // namespace tightwire::tool
