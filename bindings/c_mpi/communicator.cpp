#include <chrono>

#include <tightwire/tightwire_mpi.h>
#include <tightwire/mpi.hpp>

#include "../c/handles.hpp"

using tightwire::c::guarded;
using tightwire::c::require;

tightwire_status tightwire_communicator_adopt_mpi(MPI_Comm theirs, int64_t timeout_ms,
                                                  tightwire_communicator** communicator) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_communicator_adopt_mpi";
    tightwire::c::require_same_version(kCall);
    require(communicator != nullptr, kCall, "the output argument is null");
    require(timeout_ms >= 0, kCall, "timeout_ms is negative");
    tightwire::mpi::Options options;
    if (timeout_ms != 0) options.timeout = std::chrono::milliseconds(timeout_ms);
    *communicator = tightwire::c::communicator_of(tightwire::mpi::adopt(theirs, options));
  });
}
