#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/ucx.hpp>

namespace tightwire::mixed {

/// What to do, on every rank alike, where ranks of one node cannot share memory; gets the reason.
using Otherwise = std::function<std::unique_ptr<Transport>(const std::string& reason)>;

/// Joins the job and connects ranks of one node through memory, as shm::open does, and those of different nodes over
/// UCX, as ucx::open does; frames have checksums where they may cross a wire. `node_of_rank` says who shares a node, by
/// any numbers, the same on all ranks; empty: who can share memory does, found by joining once before.
/// Collective. In a child of fork() it is inert, as both are. Throws what those throw; Error(invalid_argument) for
/// another number of nodes than ranks, and Error(mismatch) naming two ranks that were given different nodes. Where
/// ranks of a node cannot share memory, the ranks of all nodes hear which, whose, and why: all throw that, or leave the
/// job and return what `otherwise` gives.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const std::vector<int>& node_of_rank = {},
                                const ucx::Options& options = {}, const Otherwise& otherwise = {});

}  // namespace tightwire::mixed
