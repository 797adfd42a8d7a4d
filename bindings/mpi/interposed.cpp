// The functions of MPI that a program calls here instead. Everything they do not compress they hand on as it came.
#include <exception>
#include <memory>

#include "preloaded.hpp"

using tightwire::Error;
using tightwire::mpi::Call;
using tightwire::mpi::CompressedCommunicator;
using tightwire::mpi::Preloaded;

namespace {

Call call_of(const void* contribution, void* sum, int count) {
  return {contribution == MPI_IN_PLACE ? nullptr : static_cast<const float*>(contribution), static_cast<float*>(sum),
          static_cast<std::size_t>(count)};
}

/// What MPI keeps for a started sum until the program has waited for it.
struct Pending {
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_SUCCESS;
};

int query(void* pending, MPI_Status* status) {
  PMPI_Status_set_elements(status, MPI_BYTE, 0);
  PMPI_Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return static_cast<Pending*>(pending)->code;
}

int release(void* pending) {
  delete static_cast<Pending*>(pending);
  return MPI_SUCCESS;
}

/// A sum that was started cannot be taken back.
int cancel(void* /*pending*/, int /*complete*/) { return MPI_SUCCESS; }

/// What `body` returns; no exception gets into a program of another language. Errors as MPI has them: through the
/// communicator's handler, which by default ends the job.
template <class Body>
int guarded(MPI_Comm communicator, const Body& body) noexcept {
  int code = MPI_SUCCESS;
  try {
    return body();
  } catch (const std::exception& error) {
    code = Preloaded::instance().code_of(error.what());
  }
  PMPI_Comm_call_errhandler(communicator, code);
  return code;
}

int start(CompressedCommunicator& ours, const Call& call, MPI_Request* request) {
  auto pending = std::make_unique<Pending>();
  const int status = PMPI_Grequest_start(query, release, cancel, pending.get(), &pending->request);
  if (status != MPI_SUCCESS) return status;
  Pending* const kept = pending.release();  // MPI's, until `release`
  const MPI_Request theirs = *request = kept->request;
  const auto end = [kept, theirs](const char* error) {
    if (error != nullptr) kept->code = Preloaded::instance().code_of(error);
    PMPI_Grequest_complete(theirs);  // after which `kept` may be gone
  };
  try {
    ours.start(call, [end](const Error* error) { end(error == nullptr ? nullptr : error->what()); });
  } catch (const std::exception& error) {  // MPI has the request: its wait tells
    end(error.what());
  }
  return MPI_SUCCESS;
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

int MPI_Init(int* count, char*** words) {
  if (!Preloaded::wanted()) return PMPI_Init(count, words);
  int provided = MPI_THREAD_SINGLE;
  return MPI_Init_thread(count, words, MPI_THREAD_MULTIPLE, &provided);
}

int MPI_Init_thread(int* count, char*** words, int required, int* provided) {
  if (!Preloaded::wanted()) return PMPI_Init_thread(count, words, required, provided);
  const int status = PMPI_Init_thread(count, words, MPI_THREAD_MULTIPLE, provided);
  if (status == MPI_SUCCESS) Preloaded::instance().begin();
  return status;
}

int MPI_Finalize() {
  Preloaded::instance().end();
  return PMPI_Finalize();
}

int MPI_Allreduce(const void* contribution, void* sum, int count, MPI_Datatype type, MPI_Op operation,
                  MPI_Comm communicator) {
  return guarded(communicator, [&] {
    CompressedCommunicator* const ours = Preloaded::instance().find(count, type, operation, communicator);
    if (ours == nullptr) return PMPI_Allreduce(contribution, sum, count, type, operation, communicator);
    ours->all_reduce(call_of(contribution, sum, count));
    return MPI_SUCCESS;
  });
}

// NOLINTNEXTLINE(readability-function-size): MPI says how many parameters it has
int MPI_Iallreduce(const void* contribution, void* sum, int count, MPI_Datatype type, MPI_Op operation,
                   MPI_Comm communicator, MPI_Request* request) {
  return guarded(communicator, [&] {
    CompressedCommunicator* const ours = Preloaded::instance().find(count, type, operation, communicator);
    if (ours == nullptr) return PMPI_Iallreduce(contribution, sum, count, type, operation, communicator, request);
    return start(*ours, call_of(contribution, sum, count), request);
  });
}

#pragma GCC visibility pop
}
