#pragma once
#include <string>

#include <tightwire/error.hpp>

#include "rendezvous/descriptor.hpp"

namespace tightwire {

/// Tells the process that made it from its children by fork(): there memory, connections and peers are the parent's,
/// and not even a mutex can be had, since a thread that the child does not have may hold it for ever.
class ForkGuard {
 public:
  bool in_forked_child() const noexcept { return generation_ != rendezvous::fork_generation(); }
  /// For a call of the program, before anything else. Throws Error(unsupported) in a child.
  void require_parent(int rank) const {
    if (in_forked_child()) [[unlikely]]
      throw Error(Errc::unsupported, "rank " + std::to_string(rank) +
                                         ": this process is a child, by fork(), of the one that opened its transport, "
                                         "and cannot use it");
  }

 private:
  unsigned generation_ = rendezvous::fork_generation();
};

}  // namespace tightwire
