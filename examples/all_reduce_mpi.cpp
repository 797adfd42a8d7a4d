// Ten lines for a trainer that has MPI already. Runs under mpirun -np 2.
#include <mpi.h>

#include <iostream>
#include <vector>

#include <tightwire/tightwire.hpp>

int main(int count, char** words) {
  MPI_Init(&count, &words);
  {
    tightwire::Session session(tightwire::mpi::adopt(MPI_COMM_WORLD), {.codec = tightwire::Int8{.block = 256}});
    session.add("layer.weight", {512, 256});
    session.seal();
    std::vector<float> weight(512 * 256, 1.0f + static_cast<float>(session.rank()));
    session.all_reduce(weight);  // in place: the mean over ranks, the same bytes on every rank
    session.commit();
    if (session.rank() == 0) std::cout << "mean " << weight[0] << '\n';
  }  // what MPI moves messages for ends before MPI does
  MPI_Finalize();
}
