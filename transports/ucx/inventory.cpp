#include "inventory.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "context.hpp"
#include "log_capture.hpp"

namespace tightwire::ucx {
namespace {

/// UCX 1.13 tells what it uses only as text for people, written to a FILE.
template <class Print>
std::string captured(const Print& print) {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* stream = open_memstream(&text, &length);
  if (stream == nullptr) throw Error(Errc::no_memory, "ucx: cannot open a memory stream");
  print(stream);
  std::fclose(stream);
  std::string result(text, length);
  std::free(text);
  return result;
}

/// Calls `take` with every line of `text`.
template <class Take>
void for_each_line(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    take(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// Splits UCX's "transport/device"; the device ends at the first blank, the transport begins after the last one.
Resource resource_at(std::string_view line, std::size_t slash) {
  const std::size_t begin = line.find_last_of(" :", slash);
  const std::size_t end = std::min(line.find(' ', slash), line.size());
  return {std::string(line.substr(begin + 1, slash - begin - 1)), std::string(line.substr(slash + 1, end - slash - 1))};
}

/// UCX's own words for groups of transports, which stand for whatever of the group is there.
struct Group {
  std::string_view name;
  std::string_view members;
};
constexpr std::string_view kSharedMemory = "posix,sysv,xpmem,cma,knem";
constexpr std::array<Group, 11> kGroups = {{{"mm", "posix,sysv,xpmem"},
                                            {"sm", kSharedMemory},
                                            {"shm", kSharedMemory},
                                            {"ib", "rc_verbs,rc_mlx5,ud_verbs,ud_mlx5,dc_mlx5"},
                                            {"rc", "rc_verbs,rc_mlx5,ud_verbs,ud_mlx5"},
                                            {"rc_v", "rc_verbs,ud_verbs"},
                                            {"rc_x", "rc_mlx5,ud_mlx5"},
                                            {"ud", "ud_verbs,ud_mlx5"},
                                            {"ud_v", "ud_verbs"},
                                            {"ud_x", "ud_mlx5"},
                                            {"dc", "dc_mlx5"}}};

template <class Take>
void for_each_name(std::string_view list, const Take& take) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    if (end > 0) take(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

bool lists(std::string_view list, std::string_view item) {
  bool found = false;
  for_each_name(list, [&](std::string_view name) { found = found || name == item; });
  return found;
}

/// Whether UCX_TLS=`name` would allow `transport`.
bool stands_for(std::string_view name, std::string_view transport) {
  if (name == "all" || name == transport) return true;
  return std::any_of(kGroups.begin(), kGroups.end(),
                     [&](const Group& group) { return group.name == name && lists(group.members, transport); });
}

[[noreturn]] void refuse(std::string_view kind, std::string_view name, std::string_view known) {
  throw Error(Errc::unsupported, "ucx: " + std::string(kind) + " '" + std::string(name) +
                                     "' is not available here; UCX has: " + std::string(known));
}

}  // namespace

std::vector<Resource> resources(ucp_context_h context) {
  std::vector<Resource> found;
  for_each_line(captured([&](std::FILE* stream) { ucp_context_print_info(context, stream); }),
                [&](std::string_view line) {
                  const std::size_t slash = line.rfind('/');
                  if (line.find(" resource ") != line.npos && slash != line.npos)
                    found.push_back(resource_at(line, slash));
                });
  return found;
}

std::vector<Resource> all_resources() { return resources(Context({.transports = "all", .devices = "all"}, 1).get()); }

std::string transport_names(const std::vector<Resource>& resources) {
  std::vector<std::string> names;
  std::string text;
  for (const Resource& resource : resources) {
    if (std::find(names.begin(), names.end(), resource.transport) != names.end()) continue;
    names.push_back(resource.transport);
    text += (text.empty() ? "" : " ") + resource.transport;
  }
  return text;
}

bool has_shared_memory(const std::vector<Resource>& resources) {
  return std::any_of(resources.begin(), resources.end(),
                     [](const Resource& resource) { return lists(kSharedMemory, resource.transport); });
}

std::string lanes(ucp_ep_h endpoint) {
  std::vector<Resource> found;
  for_each_line(captured([&](std::FILE* stream) { ucp_ep_print_info(endpoint, stream); }), [&](std::string_view line) {
    const std::size_t lane = line.find("lane[");
    const std::size_t slash = lane == line.npos ? line.npos : line.find('/', lane);
    if (slash != line.npos) found.push_back(resource_at(line, slash));
  });
  return transport_names(found);
}

bool only_shared_memory(std::string_view lanes) {
  bool all = !lanes.empty();
  for (std::size_t begin = 0; begin < lanes.size();) {
    const std::size_t end = std::min(lanes.find(' ', begin), lanes.size());
    all = all && lists(kSharedMemory, lanes.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

void require_available(const Options& options) {
  if (options.transports.empty() && options.devices.empty()) return;
  const std::vector<Resource> available = all_resources();
  if (!options.transports.starts_with('^'))
    for_each_name(options.transports, [&](std::string_view name) {
      if (std::none_of(available.begin(), available.end(),
                       [&](const Resource& resource) { return stands_for(name, resource.transport); }))
        refuse("transport", name, transport_names(available));
    });
  for_each_name(options.devices, [&](std::string_view name) {
    std::string known;
    for (const Resource& resource : available) known += (known.empty() ? "" : " ") + resource.device;
    if (name != "all" && std::none_of(available.begin(), available.end(),
                                      [&](const Resource& resource) { return resource.device == name; }))
      refuse("device", name, known);
  });
}

bool knows_cuda_memory() {
  const LogCapture capture;
  const Context context({.transports = "all", .devices = "all"}, 1);
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (const ucs_status_t status = ucp_context_query(context.get(), &attributes); status != UCS_OK)
    throw Error(Errc::transport, std::string("ucx: ucp_context_query: ") + ucs_status_string(status));
  return (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

std::string available_transports() {
  const LogCapture capture;
  return transport_names(all_resources());
}

}  // namespace tightwire::ucx
