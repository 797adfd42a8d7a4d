#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace bench {

/// Another library's all-reduce, measured in the same run on the same ranks.
class Peer {
 public:
  Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  /// fp32 sum of `count` elements over all ranks, out of place.
  virtual void all_reduce(const float* in, float* out, std::size_t count) = 0;
};

/// Open MPI, when this program was started by mpirun and built with MPI; else null.
std::unique_ptr<Peer> open_mpi();

}  // namespace bench
