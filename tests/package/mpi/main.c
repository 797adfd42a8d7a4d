#include <tightwire/tightwire_mpi.h>

/* One rank alone, started without mpirun. */
int main(int count, char** words) {
  tightwire_communicator* communicator = NULL;
  MPI_Init(&count, &words);
  const int right = tightwire_communicator_adopt_mpi(MPI_COMM_WORLD, 0, &communicator) == TIGHTWIRE_OK &&
                    tightwire_communicator_size(communicator) == 1;
  tightwire_communicator_close(communicator);
  MPI_Finalize();
  return right ? 0 : 1;
}
