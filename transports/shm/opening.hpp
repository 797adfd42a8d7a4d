#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/shm.hpp>

#include "part.hpp"

namespace tightwire::shm {

/// Of a rank that shares memory with all of `ranks` ranks, itself among them. Throws nothing: the blob says what
/// failed, more than `kMostRanks` among it.
std::unique_ptr<PartOpening> prepare(int ranks);

/// For each rank the first one that it can share memory with, which may be itself; found by joining, and leaving again.
/// `asked`: see with_asked.
std::vector<int> nodes(const Rendezvous& rendezvous, std::string_view asked);

/// As `shm::open`, for a rank that was asked for something of which this is a part.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise, std::string_view asked);

}  // namespace tightwire::shm
