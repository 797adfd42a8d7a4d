#pragma once
#include <memory>

#include <tightwire/rendezvous.hpp>
#include <tightwire/ucx.hpp>

#include "part.hpp"

namespace tightwire::ucx {

/// Throws nothing: the blob says what failed.
std::unique_ptr<PartOpening> prepare(const Rendezvous& rendezvous, const Options& options);

}  // namespace tightwire::ucx
