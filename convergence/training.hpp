#pragma once
#include <memory>

#include <tightwire/transport.hpp>

#include "options.hpp"
#include "recorder.hpp"

namespace convergence {

/// Trains on one rank of a job whose ranks are threads, with one recorder for all, or processes with one each;
/// `options` are complete. Collective. Rank 0 prints what lines.hpp says.
void train(const std::shared_ptr<tightwire::Transport>& transport, const Options& options, Recorder& recorder);

}  // namespace convergence
