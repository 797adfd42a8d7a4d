#include <tightwire/tightwire.h>

/* A project in C alone: one rank, whose mean is its own gradient, to int8's precision twice. */
int main(void) {
  tightwire_communicator* communicator = NULL;
  tightwire_session* session = NULL;
  const int64_t shape[] = {64, 64};
  float gradient[64 * 64];
  float* pointer = gradient;
  for (int i = 0; i < 64 * 64; ++i) gradient[i] = 0.5f;
  if (tightwire_require_abi(TIGHTWIRE_ABI_VERSION) || tightwire_communicator_from_environment(&communicator) ||
      tightwire_session_open(communicator, "int8", &session) ||
      tightwire_session_add(session, "weight", shape, 2, TIGHTWIRE_FLOAT32, NULL) || tightwire_session_seal(session) ||
      tightwire_session_all_reduce(session, (void**)&pointer, 1) || tightwire_session_commit(session, NULL))
    return 1;
  tightwire_session_close(session);
  tightwire_communicator_close(communicator);
  return gradient[7] > 0.49f && gradient[7] < 0.51f ? 0 : 1;
}
