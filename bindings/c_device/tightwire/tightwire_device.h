/* Gradients that stay on GPUs, from C99: libtightwire_c_device, beside libtightwire, which knows no CUDA.
 *
 *     tightwire_device_communicator_adopt_nccl(nccl, 0, &communicator);   (the ncclComm_t that the trainer has)
 *     tightwire_device_session_open(communicator, "int8:block=256 exact=*.bias", &session);
 *     tightwire_device_session_add(session, "layer.weight", shape, 2, TIGHTWIRE_BFLOAT16, NULL);
 *     tightwire_device_session_seal(session);
 *     for (each step) {
 *       tightwire_device_session_all_reduce(session, gradients, 1, stream);
 *       tightwire_device_session_commit(session, NULL);
 *     }
 *
 * Statuses, last errors, ownership, growth and fork() are those of tightwire.h, and so are specifications, operations,
 * states and bits. Calls put their work on streams and return; only seal, synchronize, save, restore, a wait for a
 * bucket with top-k or PowerSGD, and commit and rollback under a policy of non-finite elements that must know how many
 * there were, wait for the device. Errors of the device and of peers are found by the first call after they happened,
 * by synchronize at the latest. No header of CUDA's or NCCL's is needed here: a cudaStream_t is a struct CUstream_st*,
 * an ncclComm_t goes as a void*. Not on devices, and TIGHTWIRE_UNSUPPORTED: auto, hier() and levels=, residual=bf16,
 * telemetry=, algorithm=ring and tree, and momentum= with randomk. */
#ifndef TIGHTWIRE_DEVICE_H
#define TIGHTWIRE_DEVICE_H

#include <tightwire/tightwire.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct CUstream_st;

/* --- Communicators: the ranks of a job, each with the device that is current when it is opened -----------------------
 */

typedef struct tightwire_device_communicator tightwire_device_communicator;

/* Uses an ncclComm_t of the caller's, who keeps it, and keeps it alive until this communicator and its Sessions are
 * closed. It carries nothing itself: Sessions have communicators split from it. `timeout_ms`: of every later wait; 0: a
 * minute. TIGHTWIRE_UNSUPPORTED where no NCCL is loaded or found, TIGHTWIRE_INVALID_ARGUMENT for null and for one that
 * failed. */
tightwire_status tightwire_device_communicator_adopt_nccl(void* nccl_communicator, int64_t timeout_ms,
                                                          tightwire_device_communicator** communicator);
/* Joins the job that the launcher described in environment variables, over NCCL. Collective. */
tightwire_status tightwire_device_communicator_from_environment(tightwire_device_communicator** communicator);
/* Over a communicator of the host's (tightwire.h, tightwire_mpi.h), through pinned memory, without NCCL. Collective. */
tightwire_status tightwire_device_communicator_staged(tightwire_communicator* host, int64_t timeout_ms,
                                                      tightwire_device_communicator** communicator);

/* -1 without a communicator. */
int32_t tightwire_device_communicator_rank(const tightwire_device_communicator* communicator);
int32_t tightwire_device_communicator_size(const tightwire_device_communicator* communicator);
/* The mode in force, for people. Valid until the communicator is closed. */
const char* tightwire_device_communicator_description(const tightwire_device_communicator* communicator);
/* Gives up: what is under way ends, with nothing of use in its memory. From any thread. */
tightwire_status tightwire_device_communicator_abort(tightwire_device_communicator* communicator, const char* reason);
/* Null is nothing to close. A Session keeps what it needs of its communicator. */
void tightwire_device_communicator_close(tightwire_device_communicator* communicator);

/* --- Sessions: as those of tightwire.h, for memory of the device -----------------------------------------------------
 */

typedef struct tightwire_device_session tightwire_device_session;

tightwire_status tightwire_device_session_open(tightwire_device_communicator* communicator, const char* specification,
                                               tightwire_device_session** session);
tightwire_status tightwire_device_session_add(tightwire_device_session* session, const char* name, const int64_t* shape,
                                              size_t dimensions, tightwire_type type, size_t* parameter);
tightwire_status tightwire_device_session_add_buffer(tightwire_device_session* session, const tightwire_buffer* buffer,
                                                     size_t* parameter);
tightwire_status tightwire_device_session_bucket_of(tightwire_device_session* session, size_t parameter,
                                                    size_t* bucket);
tightwire_status tightwire_device_session_add_bucket(tightwire_device_session* session, const size_t* parameters,
                                                     size_t count, size_t* bucket);
tightwire_status tightwire_device_session_seal(tightwire_device_session* session);

/* Starts the reduction of a bucket, in place, once `producer` has come to here. Buckets are exchanged in the order of
 * their numbers. */
tightwire_status tightwire_device_session_start(tightwire_device_session* session, size_t bucket,
                                                void* const* gradients, size_t count, struct CUstream_st* producer);
/* What is put on `stream` from now on comes after the reduction of a bucket that was started. For as many streams as
 * want it. */
tightwire_status tightwire_device_session_wait(tightwire_device_session* session, size_t bucket,
                                               struct CUstream_st* stream);
/* Starts all buckets and lets `stream` wait for them: one pointer per parameter, in order of addition. */
tightwire_status tightwire_device_session_all_reduce(tightwire_device_session* session, void* const* gradients,
                                                     size_t count, struct CUstream_st* stream);

tightwire_status tightwire_device_session_commit(tightwire_device_session* session, int32_t* kept);
tightwire_status tightwire_device_session_rollback(tightwire_device_session* session);
/* Waits until all that was started has ended on the device; what went wrong is this call's error. */
tightwire_status tightwire_device_session_synchronize(tightwire_device_session* session);

/* In the format of tightwire_session_save: what one kind of Session saved the other restores. */
tightwire_status tightwire_device_session_save(tightwire_device_session* session, const void** bytes, size_t* size);
tightwire_status tightwire_device_session_restore(tightwire_device_session* session, const void* bytes, size_t size);
tightwire_status tightwire_device_session_restore_ranks(tightwire_device_session* session, const void* const* states,
                                                        const size_t* sizes, size_t count);

/* Of all reductions that were started: calls and bytes; non-finite elements of those that synchronize or commit waited
 * for. Times are 0: work goes on behind the host's back. */
tightwire_status tightwire_device_session_statistics(tightwire_device_session* session,
                                                     tightwire_statistics* statistics);
tightwire_status tightwire_device_session_description(tightwire_device_session* session, const char** text);
tightwire_status tightwire_device_session_counts(tightwire_device_session* session, size_t* parameters, size_t* buckets,
                                                 uint64_t* steps, size_t* residual_bytes);
tightwire_status tightwire_device_session_bucket(tightwire_device_session* session, size_t bucket, size_t* parameters,
                                                 size_t capacity, size_t* count);
/* Null is nothing to close. Waits for what is under way, no longer than the time limit. */
void tightwire_device_session_close(tightwire_device_session* session);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
