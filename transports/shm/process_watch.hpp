#pragma once
#include <sys/types.h>

#include <optional>
#include <vector>

#include "rendezvous/descriptor.hpp"

namespace tightwire::shm {

/// Sees that processes end, by itself: Membership hears of it through rank 0, which may be stopped. Sees nothing where
/// the system has no pidfd (Linux before 5.3), or no descriptor is left.
class ProcessWatch {
 public:
  ProcessWatch();
  /// To be called before what shows that it is the right process, or its number could be another's by now.
  void add(int rank, pid_t process);
  /// The rank of one that ended, if any.
  std::optional<int> ended() const noexcept;
  /// Readable (poll) from the first end on; -1: none.
  int descriptor() const noexcept { return all_.get(); }

 private:
  rendezvous::Descriptor all_;
  std::vector<rendezvous::Descriptor> processes_;
};

}  // namespace tightwire::shm
