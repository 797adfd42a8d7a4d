/* The C interface on communicators of MPI's. Every rank of an mpirun runs all of this. With an argument MPI allows one
 * thread alone. */
#include <tightwire/tightwire_mpi.h>

#include "../c/check.h"

enum { kRows = 192, kColumns = 128, kCount = kRows * kColumns };
static float gradient[kCount];

static tightwire_session* sealed(tightwire_communicator* communicator) {
  const int64_t shape[] = {kRows, kColumns};
  tightwire_session* session = NULL;
  CHECK_OK(tightwire_session_open(communicator, "int4:block=64 timeout=20", &session));
  CHECK_OK(tightwire_session_add(session, "weight", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_OK(tightwire_session_seal(session));
  return session;
}

static void refused(void) {
  tightwire_communicator* communicator = NULL;
  CHECK_FAILS(tightwire_communicator_adopt_mpi(MPI_COMM_NULL, 0, &communicator), TIGHTWIRE_INVALID_ARGUMENT,
              "MPI_COMM_NULL");
  CHECK_FAILS(tightwire_communicator_adopt_mpi(MPI_COMM_WORLD, -1, &communicator), TIGHTWIRE_INVALID_ARGUMENT,
              "timeout_ms is negative");
  CHECK_FAILS(tightwire_communicator_adopt_mpi(MPI_COMM_WORLD, 0, NULL), TIGHTWIRE_INVALID_ARGUMENT, "null");
  CHECK(communicator == NULL);
}

/* Sums of many steps are right, and the same everywhere; what the Session sends does not meet the program's own. */
static void steps(MPI_Comm ranks, int many_threads) {
  tightwire_communicator* communicator = NULL;
  int rank = -1, size = 0;
  uint64_t hashes[8], hash = 0;
  double sum = 0;
  MPI_Comm_rank(ranks, &rank);
  MPI_Comm_size(ranks, &size);
  CHECK_OK(tightwire_communicator_adopt_mpi(ranks, 20000, &communicator));
  CHECK(tightwire_communicator_rank(communicator) == rank && tightwire_communicator_size(communicator) == size);
  CHECK(strstr(tightwire_communicator_description(communicator), "mpi: ") != NULL);
  tightwire_session* session = sealed(communicator);
  void* pointer = gradient;
  for (int step = 0; step < 20; ++step) {
    for (int i = 0; i < kCount; ++i) gradient[i] = (float)((i * 37 + rank * 11) % 101);
    if (many_threads) {
      CHECK_OK(tightwire_session_start(session, 0, &pointer, 1));
      MPI_Barrier(ranks);
      CHECK_OK(tightwire_session_wait(session, 0));
    } else {
      CHECK_FAILS(tightwire_session_start(session, 0, &pointer, 1), TIGHTWIRE_UNSUPPORTED, "MPI_THREAD_MULTIPLE");
      CHECK_FAILS(tightwire_session_wait(session, 0), TIGHTWIRE_INVALID_ARGUMENT, "was not started");
      CHECK_OK(tightwire_session_all_reduce(session, &pointer, 1)); /* the Session goes on */
    }
    CHECK_OK(tightwire_session_commit(session, NULL));
    sum += (double)gradient[4321];
    for (int i = 0; i < kCount; ++i) hash = hash * 31 + (uint64_t)(gradient[i] * 64.0f);
  }
  double mean = 0;
  for (int r = 0; r < size; ++r) mean += (double)((4321 * 37 + r * 11) % 101) / size;
  CHECK(sum / 20 > mean - 1.0 && sum / 20 < mean + 1.0); /* int4 drops up to 12; feedback brings it back */
  CHECK_OK(tightwire_communicator_gather(communicator, hash, 20000, hashes));
  for (int r = 0; r < size; ++r) CHECK(hashes[r] == hash);
  tightwire_session_close(session);
  tightwire_communicator_close(communicator);
}

int main(int count, char** words) {
  tightwire_communicator* early = NULL;
  int provided = 0, rank = 0;
  const int many_threads = count == 1;
  CHECK_FAILS(tightwire_communicator_adopt_mpi(MPI_COMM_WORLD, 0, &early), TIGHTWIRE_INVALID_ARGUMENT,
              "MPI is not initialized");
  MPI_Init_thread(&count, &words, many_threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  refused();
  steps(MPI_COMM_WORLD, many_threads);
  if (many_threads) {
    MPI_Comm reversed;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    steps(reversed, 1);
    MPI_Comm_free(&reversed);
  }
  MPI_Finalize();
  return 0;
}
