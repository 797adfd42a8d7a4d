#pragma once
#include <memory>
#include <vector>

#include <tightwire/rendezvous.hpp>

#include "part.hpp"

namespace tightwire::shm {

/// Of a rank that shares memory with all of `ranks` ranks, itself among them. Throws nothing: the blob says what
/// failed.
std::unique_ptr<PartOpening> prepare(int ranks);

/// For each rank the first one that it can share memory with, which may be itself; found by joining, and leaving again.
std::vector<int> nodes(const Rendezvous& rendezvous);

}  // namespace tightwire::shm
