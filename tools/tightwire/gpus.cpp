// NVML comes with the driver, so it is looked for when asked, and its few types that are needed are written down here.
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>

#include "topology.hpp"

namespace tightwire::tool {
namespace {

using Device = void*;

/// nvmlPciInfo_t
struct PciInfo {
  char legacy_bus[16];
  unsigned domain, bus, device, identity, subsystem;
  char bus_id[32];
};

struct Close {
  void operator()(void* library) const { dlclose(library); }
};

class Nvml {
 public:
  explicit Nvml(std::string& missing) : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) {
      missing = "the NVIDIA driver's libnvidia-ml.so.1 is not here";
      return;
    }
    const bool all =
        load(init_, "nvmlInit_v2") && load(shutdown_, "nvmlShutdown") && load(count_, "nvmlDeviceGetCount_v2") &&
        load(handle_, "nvmlDeviceGetHandleByIndex_v2") && load(name_, "nvmlDeviceGetName") &&
        load(pci_, "nvmlDeviceGetPciInfo_v3") && load(ancestor_, "nvmlDeviceGetTopologyCommonAncestor") &&
        load(link_state_, "nvmlDeviceGetNvLinkState") && load(link_peer_, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    const int status = all ? init_() : -1;
    ready_ = all && status == 0;
    if (!all) missing = "the NVIDIA driver's libnvidia-ml.so.1 lacks functions that are needed";
    if (all && status != 0) missing = "NVML does not start: error " + std::to_string(status);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (ready_) shutdown_();
  }

  bool ready() const { return ready_; }

  std::vector<Device> devices() const {
    unsigned count = 0;
    std::vector<Device> devices;
    if (count_(&count) != 0) return devices;
    for (unsigned i = 0; i < count; ++i)
      if (Device device = nullptr; handle_(i, &device) == 0) devices.push_back(device);
    return devices;
  }
  std::string name(Device device) const {
    std::array<char, 96> text{};
    return name_(device, text.data(), text.size()) == 0 ? text.data() : "unknown";
  }
  std::string bus(Device device) const {
    PciInfo info{};
    return pci_(device, &info) == 0 ? info.bus_id : "";
  }
  /// Active links by the bus of what they lead to.
  std::map<std::string, int> links(Device device) const {
    constexpr unsigned kMostLinks = 18;
    std::map<std::string, int> links;
    for (unsigned link = 0; link < kMostLinks; ++link) {
      unsigned active = 0;
      PciInfo info{};
      if (link_state_(device, link, &active) == 0 && active != 0 && link_peer_(device, link, &info) == 0)
        ++links[info.bus_id];
    }
    return links;
  }
  std::string path(Device a, Device b) const {
    int level = 0;
    if (ancestor_(a, b, &level) != 0) return "?";
    return level >= 50 ? "SYS" : level >= 40 ? "NODE" : level >= 30 ? "PHB" : level >= 20 ? "PXB" : "PIX";
  }

 private:
  template <class Function>
  bool load(Function& function, const char* name) {
    void* const symbol = dlsym(library_.get(), name);
    static_assert(sizeof symbol == sizeof function);
    std::memcpy(&function, &symbol, sizeof function);
    return symbol != nullptr;
  }

  std::unique_ptr<void, Close> library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, Device*) = nullptr;
  int (*name_)(Device, char*, unsigned) = nullptr;
  int (*pci_)(Device, PciInfo*) = nullptr;
  int (*ancestor_)(Device, Device, int*) = nullptr;
  int (*link_state_)(Device, unsigned, unsigned*) = nullptr;
  int (*link_peer_)(Device, unsigned, PciInfo*) = nullptr;
};

}  // namespace

std::vector<Gpu> gpus(std::string& missing) {
  const Nvml nvml(missing);
  std::vector<Gpu> found;
  if (!nvml.ready()) return found;
  const std::vector<Device> devices = nvml.devices();
  std::vector<std::map<std::string, int>> links;
  for (const Device device : devices) {
    found.push_back({nvml.name(device), nvml.bus(device), {}});
    links.push_back(nvml.links(device));
  }
  if (found.empty()) missing = "NVML sees no device";
  // Links to what is no GPU lead to a switch, which joins all that have such.
  const auto to_switch = [&](std::size_t i) {
    int number = 0;
    for (const auto& [bus, count] : links[i]) {
      bool gpu = false;
      for (const Gpu& other : found) gpu = gpu || other.bus == bus;
      if (!gpu) number += count;
    }
    return number;
  };
  for (std::size_t i = 0; i < found.size(); ++i)
    for (std::size_t j = 0; j < found.size(); ++j) {
      const auto direct = links[i].find(found[j].bus);
      const int number = direct != links[i].end() ? direct->second : std::min(to_switch(i), to_switch(j));
      found[i].to.push_back(i == j       ? "X"
                            : number > 0 ? "NV" + std::to_string(number)
                                         : nvml.path(devices[i], devices[j]));
    }
  return found;
}

}  // namespace tightwire::tool
