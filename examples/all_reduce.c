/* Gradients in step on all ranks, from C99. Runs under `tightwire run -n 4 --`, mpirun, srun, torchrun. */
#include <stdio.h>
#include <tightwire/tightwire.h>

#define TRY(call) \
  if ((call) != TIGHTWIRE_OK) return fprintf(stderr, "%s\n", tightwire_last_error()), 1

int main(void) {
  tightwire_communicator* communicator;
  tightwire_session* session;
  static float weight[512 * 256];
  TRY(tightwire_communicator_from_environment(&communicator));
  TRY(tightwire_session_open(communicator, "int8:block=256 exact=*.bias", &session));
  TRY(tightwire_session_add(session, "layer.weight", (int64_t[]){512, 256}, 2, TIGHTWIRE_FLOAT32, NULL));
  TRY(tightwire_session_seal(session)); /* ranks that disagree stop here, with an error that names both sides */
  for (int i = 0; i < 512 * 256; ++i) weight[i] = 1.0f + (float)tightwire_communicator_rank(communicator);
  TRY(tightwire_session_all_reduce(session, (void*[]){weight}, 1)); /* in place: the mean, the same bytes everywhere */
  TRY(tightwire_session_commit(session, NULL));                     /* the residuals of this step count */
  if (tightwire_communicator_rank(communicator) == 0) printf("mean %g\n", (double)weight[0]);
  tightwire_session_close(session);
  tightwire_communicator_close(communicator);
  return 0;
}
