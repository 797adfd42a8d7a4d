#include <sched.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "mpi_transport.hpp"
#include "take_over.hpp"

namespace tightwire::mpi {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(Errc::invalid_argument, "mpi::adopt: " + why); }

/// Of whichever kind this MPI's handles are.
template <class Handle>
Handle handle_of(detail::Communicator communicator) {
  if (communicator.is_pointer != std::is_pointer_v<Handle>)
    refuse("the communicator is of another MPI implementation than " + version() +
           ", which this library was built with");
  if constexpr (std::is_pointer_v<Handle>)
    return reinterpret_cast<Handle>(communicator.bits);
  else
    return static_cast<Handle>(communicator.bits);
}

void require_running() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0) refuse("MPI is not initialized");
  if (finalized != 0) refuse("MPI is finalized");
}

}  // namespace

std::unique_ptr<Duplicate> begin_duplicate(MPI_Comm theirs) {
  auto ours = std::make_unique<Duplicate>();
  require(MPI_Comm_rank(theirs, &ours->rank), "MPI_Comm_rank");
  require(MPI_Comm_idup(theirs, &ours->communicator, &ours->request), "MPI_Comm_idup");
  return ours;
}

std::unique_ptr<Transport> take_over(std::unique_ptr<Duplicate> ours, const Options& options, const std::string& did) {
  const TimePoint until = deadline_after(options.timeout);
  for (int complete = 0; complete == 0; sched_yield()) {
    require(MPI_Test(&ours->request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
    if (complete != 0 || Clock::now() < until) continue;
    const int rank = ours.release()->rank;  // MPI may write to it yet
    throw Error(Errc::timeout,
                "rank " + std::to_string(rank) + ": not every rank of the communicator " + did + " in time");
  }
  require(MPI_Comm_set_errhandler(ours->communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  auto transport = std::make_unique<MpiTransport>(ours->communicator, options.timeout);
  transport->greet(until);
  return transport;
}

std::string version() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "MPI";
  text.resize(static_cast<std::size_t>(length));
  text = text.substr(0, text.find_first_of(",\n"));
  std::replace(text.begin(), text.end(), '\t', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '\0')) text.pop_back();
  return text;
}

namespace detail {

std::unique_ptr<Transport> adopt(Communicator communicator, const Options& options) {
  const auto theirs = handle_of<MPI_Comm>(communicator);
  require_running();
  if (theirs == MPI_COMM_NULL) refuse("the communicator is MPI_COMM_NULL");
  int inter = 0;
  require(MPI_Comm_test_inter(theirs, &inter), "MPI_Comm_test_inter");
  if (inter != 0) refuse("the communicator is an intercommunicator");
  if (options.timeout.count() <= 0) refuse("the timeout must be positive");
  return take_over(begin_duplicate(theirs), options, "called mpi::adopt");
}

}  // namespace detail
}  // namespace tightwire::mpi
