#pragma once
#include <memory>

#include <tightwire/transport.hpp>

namespace convergence {

/// Joins the job whose rank this process is, as its launcher describes it. Throws tightwire::Error(unsupported) where
/// this build has no network for it.
std::shared_ptr<tightwire::Transport> join_launched_job();

}  // namespace convergence
