/* The C interface of tightwire (C99), and the door for every other language.
 *
 *     tightwire_communicator* communicator;
 *     tightwire_session* session;
 *     size_t weight;
 *     tightwire_communicator_from_environment(&communicator);
 *     tightwire_session_open(communicator, "int8:block=256 exact=*.bias", &session);
 *     tightwire_session_add(session, "layer.weight", shape, 2, TIGHTWIRE_FLOAT32, &weight);
 *     tightwire_session_seal(session);
 *     for (each step) {
 *       tightwire_session_all_reduce(session, gradients, 1);
 *       tightwire_session_commit(session, NULL);
 *     }
 *
 * Every function that can fail returns a status; the text of this thread's last failure is tightwire_last_error().
 * Nothing is written to an output argument on failure. Pointers are owned by who made them: close what you opened,
 * Sessions before their communicator's last use (a Session keeps its communicator alive, so any order works).
 *
 * The interface grows: structures start with their size, set by the caller, and new members come at their end, where
 * 0 means what was so before; new options are new words of a specification. What exists keeps its meaning as long as
 * TIGHTWIRE_ABI_VERSION stays. So set a structure to 0 before its members. A longer one than the library knows is
 * TIGHTWIRE_UNSUPPORTED where what it does not know is not 0, and of one that it fills the rest stays as it is.
 *
 * After fork() the child must not use what the parent opened: every call says so with TIGHTWIRE_UNSUPPORTED, and
 * closing does nothing. */
#ifndef TIGHTWIRE_H
#define TIGHTWIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TIGHTWIRE_ABI_VERSION 1

/* Why a call failed. Equal to tightwire::Errc of C++. */
typedef enum tightwire_status {
  TIGHTWIRE_OK = 0,
  TIGHTWIRE_INVALID_ARGUMENT = 1, /* it cannot work; nothing was started */
  TIGHTWIRE_MISMATCH = 2,         /* ranks disagree; the text names both sides */
  TIGHTWIRE_TIMEOUT = 3,          /* a peer made no progress within the time limit */
  TIGHTWIRE_PEER_LOST = 4,        /* a peer's process ended, or it gave up */
  TIGHTWIRE_TRANSPORT = 5,        /* the network layer failed */
  TIGHTWIRE_CORRUPT = 6,          /* bytes from the wire or a file are not what they claim to be */
  TIGHTWIRE_NONFINITE = 7,        /* NaN or infinity met under the policy that forbids them */
  TIGHTWIRE_UNSUPPORTED = 8,      /* not built, or not possible with these arguments */
  TIGHTWIRE_NO_MEMORY = 9,
  TIGHTWIRE_DEVICE = 10,
  TIGHTWIRE_INTERNAL = 11
} tightwire_status;

/* Type of the elements of a gradient. */
typedef enum tightwire_type { TIGHTWIRE_FLOAT32 = 0, TIGHTWIRE_BFLOAT16 = 1, TIGHTWIRE_FLOAT16 = 2 } tightwire_type;

/* --- The library ------------------------------------------------------------------------------------------------- */

/* "0.1.0". */
const char* tightwire_version(void);
/* TIGHTWIRE_ABI_VERSION of the library that is loaded. */
uint32_t tightwire_abi_version(void);
/* TIGHTWIRE_UNSUPPORTED, with a text that names both versions, unless the loaded library serves callers that were
 * compiled against `abi_version`. Call it once with TIGHTWIRE_ABI_VERSION. */
tightwire_status tightwire_require_abi(uint32_t abi_version);
/* What the last call of this thread that failed had to say: names the rank and, of a disagreement, both sides. Never
 * null; valid until this thread's next failure. */
const char* tightwire_last_error(void);
/* Makes `text` what tightwire_last_error says on this thread, and returns the status: for libraries beside this one,
 * and callers' own, whose failures are told alike. */
tightwire_status tightwire_fail(tightwire_status status, const char* text);
/* "mismatch"; "unknown" for what is no status. */
const char* tightwire_status_name(int status);
/* Version, CPU level, transports and codecs, line by line, for people. */
const char* tightwire_info(void);

/* --- Communicators: the ranks of a job, each a process (or a thread) ------------------------------------------------
 */

typedef struct tightwire_communicator tightwire_communicator;

/* Where the ranks of a job meet. Set it all to 0 first, then struct_size to
 * sizeof(tightwire_rendezvous). */
typedef struct tightwire_rendezvous {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  const char* address; /* "tcp://host:port": rank 0 listens there. "file:///path": on a free port, told in that file;
                          "local:///path": the same on loopback. Not needed by one rank alone. */
  const char* key;     /* what all ranks must know to be let in; never sent */
  int64_t timeout_ms;  /* of joining, and of every later wait; 0: a minute */
} tightwire_rendezvous;

/* Joins the job that the launcher described in environment variables: tightwire run, torchrun, mpirun, srun, or by hand
 * (docs/launching.md). Without any of them: one rank alone. Collective. */
tightwire_status tightwire_communicator_from_environment(tightwire_communicator** communicator);
/* Joins as told. Collective: succeeds or fails on every rank, within the time limit. */
tightwire_status tightwire_communicator_join(const tightwire_rendezvous* rendezvous,
                                             tightwire_communicator** communicator);
/* `size` ranks as threads of this process: fills an array of that many communicators, one for each thread. */
tightwire_status tightwire_communicator_in_process(int32_t size, tightwire_communicator** communicators);
/* Among the ranks of an MPI_Comm: tightwire_mpi.h. Among GPUs, of an ncclComm_t: tightwire_device.h. */

/* -1 without a communicator. */
int32_t tightwire_communicator_rank(const tightwire_communicator* communicator);
int32_t tightwire_communicator_size(const tightwire_communicator* communicator);
/* The mode in force, for people: "ucx 1.13.1: posix cma". Valid until the communicator is closed. */
const char* tightwire_communicator_description(const tightwire_communicator* communicator);
/* Every rank's value, by rank, into an array of `size` values: to compare hashes, agree on a seed. Collective. */
tightwire_status tightwire_communicator_gather(tightwire_communicator* communicator, uint64_t value, int64_t timeout_ms,
                                               uint64_t* values);
/* Something that training depends on, as this rank has it: a parameter, a momentum, a step counter, a seed. Set
 * struct_size to sizeof(tightwire_replica). */
typedef struct tightwire_replica {
  size_t struct_size;
  const char* name; /* the same on every rank */
  const void* bytes;
  size_t size;
  int32_t must_differ; /* 0: equal on all ranks; 1: no two ranks may have the same, as of seeds of augmentation */
  int32_t reserved;    /* 0 */
} tightwire_replica;

/* Finds ranks that have drifted apart: call it every 100 steps or so, on every rank, with the same replicas in the same
 * order, causes first (seeds, counters, momenta, parameters). Collective. TIGHTWIRE_MISMATCH, with the same text on
 * every rank, names the first difference and what each rank has (up to 32 printable characters, else a hash). */
tightwire_status tightwire_communicator_compare(tightwire_communicator* communicator, uint64_t step,
                                                const tightwire_replica* replicas, size_t count, int64_t timeout_ms);
/* Gives up: every rank that waits for this one, now or later, gets TIGHTWIRE_PEER_LOST with this reason at once. */
tightwire_status tightwire_communicator_abort(tightwire_communicator* communicator, const char* reason);
/* Null is nothing to close. */
void tightwire_communicator_close(tightwire_communicator* communicator);

/* --- Sessions: keep the gradients of a model in step on all ranks ---------------------------------------------------
 */

typedef struct tightwire_session tightwire_session;

/* Opens a Session. Its specification is words with spaces between: a codec (docs/codecs.md; int8 without one; auto:
 * the ranks measure and choose), then any of
 *     exact=PATTERN               parameters so named are sent whole; * matches any run of characters, ? any one
 *     rule=PATTERN=CODEC          parameters so named get this codec; the first word that matches decides
 *     small=exact|compressed      1-D parameters and those under 1,024 elements stay exact (the default), or do not
 *     operation=mean|sum          mean over ranks by default
 *     feedback=on|off             what the codec drops is added to the next step (on)
 *     residual=fp32|bf16          type in which that is kept (fp32)
 *     rollback=on|off             steps can be undone, at the price of twice the residuals' memory (on)
 *     nonfinite=propagate|skip_step|error
 *     momentum=FACTOR nesterov=on|off optimizer-momentum=0      momentum correction (docs/sparse.md)
 *     levels=auto|node:8|node:3+1 inside=CODEC   all-reduce over nodes: as the transport sees them, of 8 ranks each, of
 *                                 3 and 1; hier(inside=bf16, across=int4) in the codec's place says both (levels=auto)
 *     algorithm=automatic|two_shot|one_shot|ring|tree   the form of all-reduces in blocks (docs/hierarchy.md)
 *     seed=NUMBER timeout=SECONDS bucket-bytes=BYTES
 *     telemetry=FOLDER            what every step did, in files by rank (docs/telemetry.md)
 * The same on every rank; Sessions of a communicator are opened in the same order on every rank. */
tightwire_status tightwire_session_open(tightwire_communicator* communicator, const char* specification,
                                        tightwire_session** session);
/* The same from a file of TOML, whose keys are the words above:
 *     codec = "int8:block=256"
 *     exact = ["*.bias", "*norm*"]
 *     feedback = true
 *     timeout = 20
 *     [[rule]]
 *     name = "head.*"
 *     codec = "bf16"
 * What is wrong with it is told with its line. */
tightwire_status tightwire_session_open_file(tightwire_communicator* communicator, const char* path,
                                             tightwire_session** session);
/* Adds a parameter, before sealing. Its number, counted from 0, goes to `parameter` unless that is null. */
tightwire_status tightwire_session_add(tightwire_session* session, const char* name, const int64_t* shape,
                                       size_t dimensions, tightwire_type type, size_t* parameter);
/* What becomes of a buffer: the mean (or sum) of all of it on every rank; of all of it, each rank's part of the result
 * on that rank alone; every rank's part on all; one rank's on all. Parts are in place: rank r's is part number r of the
 * whole. */
typedef enum tightwire_operation {
  TIGHTWIRE_ALL_REDUCE = 0,
  TIGHTWIRE_REDUCE_SCATTER = 1,
  TIGHTWIRE_ALL_GATHER = 2,
  TIGHTWIRE_BROADCAST = 3
} tightwire_operation;

/* A buffer for any operation. Set struct_size to sizeof(tightwire_buffer). */
typedef struct tightwire_buffer {
  size_t struct_size;
  const char* name;
  const int64_t* shape; /* of the whole; {ranks, elements of a part} where it is to be compressed */
  size_t dimensions;
  tightwire_type type;
  tightwire_operation operation;
  int32_t root;     /* of a broadcast */
  int32_t reserved; /* 0 */
} tightwire_buffer;

/* As tightwire_session_add, for any operation. What is not all-reduced has a bucket of its own; ask for it once sealed.
 */
tightwire_status tightwire_session_add_buffer(tightwire_session* session, const tightwire_buffer* buffer,
                                              size_t* parameter);
/* The bucket that a parameter is in, once sealed. */
tightwire_status tightwire_session_bucket_of(tightwire_session* session, size_t parameter, size_t* bucket);

/* Declares that these parameters are reduced by one call, before sealing. What is in no bucket by then is put into
 * buckets of about bucket-bytes, in order of addition. */
tightwire_status tightwire_session_add_bucket(tightwire_session* session, const size_t* parameters, size_t count,
                                              size_t* bucket);
/* Buckets that were started go on in the order of their parameters' addition, as the next forward pass needs them, but
 * those of a higher priority first; of a bucket its most urgent parameter counts. Before sealing; 0 by default. */
tightwire_status tightwire_session_set_priority(tightwire_session* session, size_t parameter, int32_t priority);
/* Plans, takes all memory and agrees with the other ranks. Collective. TIGHTWIRE_MISMATCH, on every rank, where they
 * differ in anything. */
tightwire_status tightwire_session_seal(tightwire_session* session);

/* Starts the reduction of a bucket, in place: one pointer per parameter of the bucket, in the order of the bucket.
 * Returns at once; the buffers are the Session's until the bucket was waited for. */
tightwire_status tightwire_session_start(tightwire_session* session, size_t bucket, void* const* gradients,
                                         size_t count);
/* Returns when the bucket that was started holds the result: the same bytes on every rank. One thread may wait while
 * another one starts further buckets; anything else is for one thread at a time. */
tightwire_status tightwire_session_wait(tightwire_session* session, size_t bucket);
/* Reduces everything, in place: one pointer per parameter, in order of addition. */
tightwire_status tightwire_session_all_reduce(tightwire_session* session, void* const* gradients, size_t count);

/* Ends the step and keeps its residuals. `kept`, unless null, becomes 0 where the policy skip_step rolled the step
 * back, on every rank alike: do not use its gradients. */
tightwire_status tightwire_session_commit(tightwire_session* session, int32_t* kept);
/* Ends the step as if it had not happened. Every rank must do the same. */
tightwire_status tightwire_session_rollback(tightwire_session* session);

/* Multiplies what is left of earlier steps, for gradients that from now on come in another unit, as when a loss scale
 * changes; with 0 it is forgotten. Between steps, on every rank alike: where ranks differ, over nodes or with momentum
 * correction, the next reduction is a mismatch. */
tightwire_status tightwire_session_scale_residuals(tightwire_session* session, float factor);

/* Everything of this rank that later steps depend on, apart from the model: part of a checkpoint, one for each rank.
 * The bytes are the Session's, until the next call of this or the Session's end; null for `bytes` gives them back
 * early. */
tightwire_status tightwire_session_save(tightwire_session* session, const void** bytes, size_t* size);
/* Takes up what this rank saved in a job of as many ranks; training goes on bit for bit. Sealed, between steps.
 * Collective: on failure nothing is changed, on any rank. */
tightwire_status tightwire_session_restore(tightwire_session* session, const void* bytes, size_t size);
/* The same from what all ranks of a job of any number of ranks saved, in any order, so that nothing is lost. */
tightwire_status tightwire_session_restore_ranks(tightwire_session* session, const void* const* states,
                                                 const size_t* sizes, size_t count);

/* What was measured. Set struct_size to sizeof(tightwire_statistics). Bytes are of this rank. */
typedef struct tightwire_statistics {
  size_t struct_size;
  uint64_t calls;          /* reductions of a bucket */
  uint64_t gradient_bytes; /* the buffers as the trainer holds them */
  uint64_t sent_bytes;     /* frames put on the wire, headers included */
  uint64_t received_bytes;
  double encode_seconds;
  double combine_seconds;
  double decode_seconds;
  double wire_seconds;    /* under way with nothing of the above to do */
  double blocked_seconds; /* a caller waited */
  double step_seconds;    /* 0 for a step that has not ended */
  uint64_t nonfinite;     /* NaN or infinite elements met on all ranks */
} tightwire_statistics;

typedef enum tightwire_scope {
  TIGHTWIRE_THIS_STEP = 0, /* what was waited for since the last commit or rollback */
  TIGHTWIRE_LAST_STEP = 1,
  TIGHTWIRE_ALL_STEPS = 2 /* that ended */
} tightwire_scope;

tightwire_status tightwire_session_statistics(tightwire_session* session, tightwire_scope scope,
                                              tightwire_statistics* statistics);
/* What is in force, line by line: equal on all ranks. Valid until the next call of this or the Session's end. */
tightwire_status tightwire_session_description(tightwire_session* session, const char** text);
/* Numbers of parameters, of buckets, of steps that ended, and bytes of memory for residuals; any may be null. */
tightwire_status tightwire_session_counts(tightwire_session* session, size_t* parameters, size_t* buckets,
                                          uint64_t* steps, size_t* residual_bytes);
/* The parameters of a bucket, in the order in which start wants their gradients: as many as fit into `capacity`, and
 * their number into `count`. */
tightwire_status tightwire_session_bucket(tightwire_session* session, size_t bucket, size_t* parameters,
                                          size_t capacity, size_t* count);
/* Null is nothing to close. Reductions under way are given up, which the other ranks get to know. */
void tightwire_session_close(tightwire_session* session);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
