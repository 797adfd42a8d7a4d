#pragma once
#include <memory>
#include <optional>
#include <string>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::tool {

/// The UCX this copy is linked with and the transports it would use here.
struct UcxState {
  std::string version;
  std::string transports;
  bool knows_cuda_memory = false;
};

/// Joins the job by the transport that this copy has. Throws Error(unsupported) where it has none between processes.
std::shared_ptr<Transport> open_transport(const Rendezvous& rendezvous);

/// Empty where the ucx component was not built. Throws Error when UCX cannot be asked.
std::optional<UcxState> ucx_state();

}  // namespace tightwire::tool
