#pragma once
#include <memory>
#include <string>

#include <tightwire/mpi.hpp>

#include "call.hpp"

namespace tightwire::mpi {

/// A communicator of our own in the making: begun on every rank in the order of the program's calls of MPI, which is
/// all that must happen at once.
struct Duplicate {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  int rank = 0;
};

/// MPI writes to what it returns until the duplicate is made. Throws Error(transport).
std::unique_ptr<Duplicate> begin_duplicate(MPI_Comm theirs);

/// Waits for it and greets every rank. The communicator is the transport's from then on; where a rank does not come, it
/// is left to the end of MPI. Throws Error(timeout) that "not every rank of the communicator <did> in time", and
/// Error(transport | mismatch).
std::unique_ptr<Transport> take_over(std::unique_ptr<Duplicate> ours, const Options& options, const std::string& did);

}  // namespace tightwire::mpi
