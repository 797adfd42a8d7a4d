#pragma once
#include <memory>

#include <tightwire/rendezvous.hpp>
#include <tightwire/ucx.hpp>

#include "part.hpp"

namespace tightwire::ucx {

/// Throws Error(unsupported) for more ranks than a tag can tell apart.
void require_size(int ranks);

/// Throws nothing: the blob says what failed.
std::unique_ptr<PartOpening> prepare(const Rendezvous& rendezvous, const Options& options);

}  // namespace tightwire::ucx
