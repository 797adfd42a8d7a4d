#pragma once
#include <memory>
#include <string>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

/// Joins the job and connects its ranks by what fits, the same on every rank: shared memory (`shm::open`) where all can
/// share it; where some can, shared memory among those and UCX between all others (`mixed::open`); else UCX
/// (`ucx::open`). `Transport::describe` says which it is. "shm", "mixed", "ucx" or "auto" in `name`, or in
/// TIGHTWIRE_TRANSPORT, decides. Collective. Throws what those throw; Error(unsupported) where not all ranks can share
/// memory and there is no UCX in this build; Error(invalid_argument) for another name; Error(mismatch) naming two ranks
/// that were asked for different transports, or of which one has no UCX in its build.
std::unique_ptr<Transport> open_transport(const Rendezvous& rendezvous, const std::string& name = {});

}  // namespace tightwire
