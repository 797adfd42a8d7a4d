#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/session_description.hpp>

namespace tightwire {

/// The hierarchy that is in force: of one that is left to the transport, the nodes as it sees them. Collective then;
/// ranks that left it to theirs and ranks that did not get Error(mismatch), naming two of them. `channel` is the one on
/// which the Session will agree on its plan.
inline Hierarchy hierarchy_in_force(Transport& transport, std::uint32_t channel, const SessionOptions& options) {
  if (!options.hierarchy.automatic) return options.hierarchy;
  const std::string so_far = detail::describe(options, transport.size(), {}, std::deque<Bucket>{});
  agree(transport, channel, so_far, options.timeout);
  return detect_nodes(transport, options.hierarchy.inside, options.timeout);
}

}  // namespace tightwire
