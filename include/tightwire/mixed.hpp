#pragma once
#include <memory>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/ucx.hpp>

namespace tightwire::mixed {

/// Joins the job and connects ranks of one node through memory, as shm::open does, and those of different nodes over
/// UCX, as ucx::open does; frames have checksums where they may cross a wire. `node_of_rank` says who shares a node, by
/// any numbers, the same on all ranks; empty: who can share memory does, found by joining once before.
/// Collective. Throws what those throw; Error(invalid_argument) for another number of nodes than ranks, and
/// Error(mismatch) naming two ranks that were given different nodes.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const std::vector<int>& node_of_rank = {},
                                const ucx::Options& options = {});

}  // namespace tightwire::mixed
