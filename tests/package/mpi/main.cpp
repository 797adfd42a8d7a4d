// One rank alone, started without mpirun.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <vector>

#include <tightwire/mpi.hpp>
#include <tightwire/tightwire.hpp>

int main(int count, char** words) {
  MPI_Init(&count, &words);
  bool right = false;
  {
    tightwire::Session session(tightwire::mpi::adopt(MPI_COMM_WORLD), {.codec = tightwire::Int8{}});
    session.add("weight", {64, 64});
    session.seal();
    std::vector<float> gradient(64 * 64, 3.0f);
    session.all_reduce(gradient);
    right = session.commit() && gradient[5] > 2.9f && gradient[5] < 3.1f;
  }
  MPI_Finalize();
  return right ? 0 : 1;
}
