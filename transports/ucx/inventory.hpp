#pragma once
#include <ucp/api/ucp.h>

#include <string>
#include <string_view>
#include <vector>

#include <tightwire/ucx.hpp>

namespace tightwire::ucx {

/// One communication resource of this machine, in UCX's words.
struct Resource {
  std::string transport;  ///< "tcp", "posix"
  std::string device;     ///< "lo", "memory"
};

/// What a UCP context may use, in UCX's order.
std::vector<Resource> resources(ucp_context_h context);

/// What UCX could use on this machine if nothing were excluded. Costs a few milliseconds.
std::vector<Resource> all_resources();

/// The transports among `resources`, each once: "posix cma tcp".
std::string transport_names(const std::vector<Resource>& resources);

/// True if two processes of one machine can talk through memory with these resources.
bool has_shared_memory(const std::vector<Resource>& resources);

/// The transports an endpoint really uses: "posix cma". Empty while it is not connected.
std::string lanes(ucp_ep_h endpoint);

/// True if these lanes, some at least, all move bytes through memory of one machine.
bool only_shared_memory(std::string_view lanes);

/// Throws Error(unsupported) naming the first transport or device in `options` that this machine lacks. UCX itself
/// would print a warning and go on without it.
void require_available(const Options& options);

}  // namespace tightwire::ucx
