/* Communicators for programs that have MPI already (C99): libtightwire_c_mpi, beside libtightwire, which knows no MPI.
 *
 *     MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
 *     tightwire_communicator_adopt_mpi(MPI_COMM_WORLD, 0, &communicator);
 *     ... Sessions as in tightwire.h ...
 *     tightwire_communicator_close(communicator);
 *     MPI_Finalize();
 */
#ifndef TIGHTWIRE_MPI_H
#define TIGHTWIRE_MPI_H

#include <mpi.h>
#include <tightwire/tightwire.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The ranks of an MPI communicator, over a duplicate of it: what the program sends itself never meets what tightwire
 * sends. Collective: succeeds or fails on every rank within `timeout_ms` (0: a minute), which is also the limit of the
 * close. Close it, and its Sessions, before MPI_Finalize; that is collective too.
 *
 * Where MPI was initialized with less than MPI_THREAD_MULTIPLE, the calling thread is the only one that may use it:
 * tightwire_session_all_reduce works, tightwire_session_start, which works in the background, is TIGHTWIRE_UNSUPPORTED,
 * before anything is started.
 * TIGHTWIRE_INVALID_ARGUMENT before MPI_Init and after MPI_Finalize, for MPI_COMM_NULL and for an intercommunicator;
 * TIGHTWIRE_UNSUPPORTED where libtightwire is of another version. */
tightwire_status tightwire_communicator_adopt_mpi(MPI_Comm theirs, int64_t timeout_ms,
                                                  tightwire_communicator** communicator);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
