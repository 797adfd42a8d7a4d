/* Gradients in step on the ranks of an MPI program, from C99. Runs under mpirun -np 2. */
#include <stdio.h>
#include <tightwire/tightwire_mpi.h>

#define TRY(call) \
  if ((call) != TIGHTWIRE_OK) return fprintf(stderr, "%s\n", tightwire_last_error()), 1

int main(int count, char** words) {
  int provided;
  tightwire_communicator* communicator;
  tightwire_session* session;
  static float weight[512 * 256];
  MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
  TRY(tightwire_communicator_adopt_mpi(MPI_COMM_WORLD, 0, &communicator));
  TRY(tightwire_session_open(communicator, "int8:block=256", &session));
  TRY(tightwire_session_add(session, "layer.weight", (int64_t[]){512, 256}, 2, TIGHTWIRE_FLOAT32, NULL));
  TRY(tightwire_session_seal(session));
  for (int i = 0; i < 512 * 256; ++i) weight[i] = 1.0f + (float)tightwire_communicator_rank(communicator);
  TRY(tightwire_session_all_reduce(session, (void*[]){weight}, 1)); /* in place: the mean, the same bytes everywhere */
  TRY(tightwire_session_commit(session, NULL));
  if (tightwire_communicator_rank(communicator) == 0) printf("mean %g\n", (double)weight[0]);
  tightwire_session_close(session);
  tightwire_communicator_close(communicator); /* before MPI ends */
  MPI_Finalize();
  return 0;
}
