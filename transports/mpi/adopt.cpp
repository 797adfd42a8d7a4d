#include <algorithm>
#include <string>
#include <type_traits>

#include "mpi_transport.hpp"

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

/// A communicator of our own, made without waiting for ever.
MPI_Comm duplicate(MPI_Comm communicator, TimePoint until) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm ours = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  require(MPI_Comm_idup(communicator, &ours, &request), "MPI_Comm_idup");
  for (int complete = 0; complete == 0;) {
    require(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
    if (complete == 0 && Clock::now() >= until)
      throw Error(Errc::timeout, "rank " + std::to_string(rank) +
                                     ": mpi::adopt: not every rank of the communicator adopted it in time");
  }
  require(MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return ours;
}

}  // namespace

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
  const TimePoint until = Clock::now() + options.timeout;
  auto transport = std::make_unique<MpiTransport>(duplicate(theirs, until), options.timeout);
  transport->greet(until);
  return transport;
}

}  // namespace detail
}  // namespace tightwire::mpi
