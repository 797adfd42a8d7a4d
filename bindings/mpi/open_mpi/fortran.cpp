// Open MPI's Fortran calls PMPI_ of C, past what is preloaded; so that its entries are stood in for as well, and do
// what those of Open MPI do: take handles for handles of C, and call C.
#include <mpi.h>

extern "C" {
// What Fortran has for MPI_IN_PLACE and MPI_BOTTOM: addresses of blocks that the program and Open MPI share.
extern int mpi_fortran_in_place_;
extern int mpi_fortran_bottom_;
}

namespace {

void* buffer_of(char* given) {
  if (static_cast<void*>(given) == &mpi_fortran_in_place_) return MPI_IN_PLACE;
  return static_cast<void*>(given) == &mpi_fortran_bottom_ ? MPI_BOTTOM : given;
}

/// Fortran's REAL is C's float, unless the compiler was told otherwise.
MPI_Datatype type_of(MPI_Fint given) {
  MPI_Datatype type = PMPI_Type_f2c(given);
  int bytes = 0;
  if ((type == MPI_REAL || type == MPI_REAL4) && PMPI_Type_size(type, &bytes) == MPI_SUCCESS && bytes == sizeof(float))
    type = MPI_FLOAT;
  return type;
}

void tell(MPI_Fint* error, int code) {
  if (error != nullptr) *error = static_cast<MPI_Fint>(code);
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

void ompi_init_f(MPI_Fint* error) { tell(error, MPI_Init(nullptr, nullptr)); }

void ompi_init_thread_f(MPI_Fint* required, MPI_Fint* provided, MPI_Fint* error) {
  int level = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, static_cast<int>(*required), &level);
  if (code == MPI_SUCCESS) *provided = static_cast<MPI_Fint>(level);
  tell(error, code);
}

void ompi_finalize_f(MPI_Fint* error) { tell(error, MPI_Finalize()); }

// NOLINTBEGIN(readability-function-size,readability-identifier-naming): parameters and names are MPI's
void ompi_allreduce_f(char* contribution, char* sum, MPI_Fint* count, MPI_Fint* type, MPI_Fint* operation,
                      MPI_Fint* communicator, MPI_Fint* error) {
  tell(error, MPI_Allreduce(buffer_of(contribution), buffer_of(sum), static_cast<int>(*count), type_of(*type),
                            PMPI_Op_f2c(*operation), PMPI_Comm_f2c(*communicator)));
}

void ompi_iallreduce_f(char* contribution, char* sum, MPI_Fint* count, MPI_Fint* type, MPI_Fint* operation,
                       MPI_Fint* communicator, MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Iallreduce(buffer_of(contribution), buffer_of(sum), static_cast<int>(*count), type_of(*type),
                                  PMPI_Op_f2c(*operation), PMPI_Comm_f2c(*communicator), &started);
  if (code == MPI_SUCCESS) *request = PMPI_Request_c2f(started);
  tell(error, code);
}

// The module mpi_f08 calls those above; mpif.h and the module mpi call these.
void mpi_init_(MPI_Fint* error) __attribute__((alias("ompi_init_f")));
void mpi_init_thread_(MPI_Fint* required, MPI_Fint* provided, MPI_Fint* error)
    __attribute__((alias("ompi_init_thread_f")));
void mpi_finalize_(MPI_Fint* error) __attribute__((alias("ompi_finalize_f")));
void mpi_allreduce_(char*, char*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*)
    __attribute__((alias("ompi_allreduce_f")));
void mpi_iallreduce_(char*, char*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*)
    __attribute__((alias("ompi_iallreduce_f")));
// NOLINTEND(readability-function-size,readability-identifier-naming)

#pragma GCC visibility pop
}
