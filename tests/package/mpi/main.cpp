// One rank alone, started without mpirun.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <string>

#include <tightwire/mpi.hpp>

int main(int count, char** words) {
  MPI_Init(&count, &words);
  bool right = false;
  {
    const auto transport = tightwire::mpi::adopt(MPI_COMM_WORLD);
    right = transport->rank() == 0 && transport->size() == 1 && transport->describe().starts_with("mpi: ");
  }
  MPI_Finalize();
  return right ? 0 : 1;
}
