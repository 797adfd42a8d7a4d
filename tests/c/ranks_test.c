/* Ranks of a job through the C interface. With an argument: that many ranks as threads of this process; without: one
 * rank of the job that the launcher describes. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>

#include "check.h"

enum { kRows = 96, kColumns = 64, kCount = kRows * kColumns, kBias = 64, kSteps = 4 };

static float gradient_of(int rank, int step, int i) {
  return (float)((i * 37 + rank * 11 + step * 5) % 101) / 50.0f - 1.0f + (float)rank;
}

/* FNV-1a, of what all ranks must hold alike. */
static uint64_t hash_of(const float* values, size_t count) {
  const unsigned char* bytes = (const unsigned char*)values;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < count * sizeof(float); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

static void check_same_on_all_ranks(tightwire_communicator* communicator, uint64_t hash) {
  const int size = tightwire_communicator_size(communicator);
  uint64_t* hashes = malloc((size_t)size * sizeof(uint64_t));
  CHECK(hashes != NULL);
  CHECK_OK(tightwire_communicator_gather(communicator, hash, 20000, hashes));
  for (int rank = 0; rank < size; ++rank) CHECK(hashes[rank] == hash);
  free(hashes);
}

static tightwire_session* open_session(tightwire_communicator* communicator) {
  const int64_t weight_shape[] = {kRows, kColumns};
  const int64_t bias_shape[] = {kBias};
  tightwire_session* session = NULL;
  size_t weight = 9, bias = 9, first = 9, second = 9;
  CHECK_OK(tightwire_session_open(communicator, "int8:block=64 exact=*.bias small=compressed timeout=20", &session));
  CHECK_OK(tightwire_session_add(session, "layer.weight", weight_shape, 2, TIGHTWIRE_FLOAT32, &weight));
  CHECK_OK(tightwire_session_add(session, "layer.bias", bias_shape, 1, TIGHTWIRE_FLOAT32, &bias));
  CHECK(weight == 0 && bias == 1);
  CHECK_OK(tightwire_session_add_bucket(session, &bias, 1, &first));
  CHECK_OK(tightwire_session_add_bucket(session, &weight, 1, &second));
  CHECK(first == 0 && second == 1);
  CHECK_OK(tightwire_session_set_priority(session, bias, -3));
  CHECK_OK(tightwire_session_seal(session));
  return session;
}

static void check_description(tightwire_session* session) {
  const char* text = NULL;
  CHECK_OK(tightwire_session_description(session, &text));
  CHECK(strstr(text, "\"layer.weight\" [96,64] fp32 int8:block=64") != NULL);
  CHECK(strstr(text, "\"layer.bias\" [64] fp32 priority -3 exact") != NULL);
  size_t parameters = 0, buckets = 0, ids[2] = {9, 9}, count = 0, residual_bytes = 0;
  uint64_t steps = 9;
  CHECK_OK(tightwire_session_counts(session, &parameters, &buckets, &steps, &residual_bytes));
  CHECK(parameters == 2 && buckets == 2 && steps == 0 && residual_bytes >= kCount * sizeof(float));
  CHECK_OK(tightwire_session_bucket(session, 1, ids, 2, &count));
  CHECK(count == 1 && ids[0] == 0 && ids[1] == 9);
}

static void check_statistics(tightwire_session* session, int size) {
  tightwire_statistics statistics = {.struct_size = sizeof statistics};
  CHECK_OK(tightwire_session_statistics(session, TIGHTWIRE_LAST_STEP, &statistics));
  CHECK(statistics.struct_size == sizeof statistics);
  CHECK(statistics.calls == 2);
  CHECK(statistics.gradient_bytes == (kCount + kBias) * sizeof(float));
  CHECK(size == 1 || (statistics.sent_bytes > 0 && statistics.sent_bytes < 2 * statistics.gradient_bytes));
  CHECK(statistics.nonfinite == 0);
  CHECK_OK(tightwire_session_statistics(session, TIGHTWIRE_ALL_STEPS, &statistics));
  CHECK(statistics.calls == 2 * kSteps);
}

/* What is saved and restored, by this rank alone and from all ranks' states, gives the same bytes in the next step. */
static void check_checkpoint(tightwire_communicator* communicator, tightwire_session* session, float* weight) {
  const int rank = tightwire_communicator_rank(communicator);
  float bias[kBias] = {0};
  void* both[] = {weight, bias};
  const void* saved = NULL;
  size_t size = 0;
  CHECK_OK(tightwire_session_save(session, &saved, &size));
  CHECK(saved != NULL && size > kCount * sizeof(float));
  void* state = malloc(size);
  CHECK(state != NULL);
  memcpy(state, saved, size);
  CHECK_OK(tightwire_session_save(session, NULL, NULL)); /* gives the bytes back */
  uint64_t hashes[2];
  for (int run = 0; run < 2; ++run) {
    for (int i = 0; i < kCount; ++i) weight[i] = gradient_of(rank, 9, i);
    CHECK_OK(tightwire_session_all_reduce(session, both, 2));
    CHECK_OK(tightwire_session_commit(session, NULL));
    hashes[run] = hash_of(weight, kCount);
    CHECK_OK(tightwire_session_restore(session, state, size));
  }
  CHECK(hashes[0] == hashes[1]);
  CHECK_FAILS(tightwire_session_restore(session, state, size - 1), TIGHTWIRE_CORRUPT, "");
  if (tightwire_communicator_size(communicator) == 1) {
    const void* states[] = {state};
    CHECK_OK(tightwire_session_restore_ranks(session, states, &size, 1));
  }
  free(state);
}

/* Residuals that are multiplied by 0 are forgotten: the next step is the first one of a new Session. */
static void check_scaling(tightwire_communicator* communicator) {
  const int rank = tightwire_communicator_rank(communicator), size = tightwire_communicator_size(communicator);
  uint64_t hashes[3];
  for (int run = 0; run < 3; ++run) {
    tightwire_session* session = open_session(communicator);
    float* weight = malloc(kCount * sizeof(float));
    float bias[kBias] = {0};
    void* both[] = {weight, bias};
    CHECK(weight != NULL);
    for (int step = run == 0 ? 1 : 0; step < 2; ++step) {
      for (int i = 0; i < kCount; ++i) weight[i] = gradient_of(rank, step, i);
      CHECK_OK(tightwire_session_all_reduce(session, both, 2));
      CHECK_OK(tightwire_session_commit(session, NULL));
      if (step == 0) CHECK_OK(tightwire_session_scale_residuals(session, run == 1 ? 0.0f : 1.0f));
    }
    hashes[run] = hash_of(weight, kCount);
    CHECK_FAILS(tightwire_session_scale_residuals(session, INFINITY), TIGHTWIRE_INVALID_ARGUMENT, "finite");
    free(weight);
    tightwire_session_close(session);
  }
  CHECK(hashes[1] == hashes[0] && (size == 1 || hashes[2] != hashes[0]));
}

/* The other operations, in place: rank r's part is part number r. */
static void check_operations(tightwire_communicator* communicator, int compressed) {
  enum { kPart = 16, kMostRanks = 8 };
  const int rank = tightwire_communicator_rank(communicator), size = tightwire_communicator_size(communicator);
  const int64_t shape[] = {size, kPart};
  tightwire_session* session = NULL;
  size_t buckets[3];
  static const tightwire_operation kOperations[] = {TIGHTWIRE_REDUCE_SCATTER, TIGHTWIRE_ALL_GATHER,
                                                    TIGHTWIRE_BROADCAST};
  static const char* const kNames[] = {"scattered", "gathered", "told"};
  CHECK_OK(tightwire_session_open(
      communicator,
      compressed ? "int8:block=16 small=compressed operation=sum timeout=20" : "exact operation=sum timeout=20",
      &session));
  for (size_t i = 0; i < 3; ++i) {
    const tightwire_buffer buffer = {.struct_size = sizeof buffer,
                                     .name = kNames[i],
                                     .shape = shape,
                                     .dimensions = 2,
                                     .type = TIGHTWIRE_FLOAT32,
                                     .operation = kOperations[i],
                                     .root = size - 1};
    CHECK_OK(tightwire_session_add_buffer(session, &buffer, &buckets[i]));
  }
  CHECK_OK(tightwire_session_seal(session));
  float values[3][kMostRanks * kPart];
  double errors[3] = {0};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_OK(tightwire_session_bucket_of(session, i, &buckets[i]));
    for (int k = 0; k < size * kPart; ++k) values[i][k] = (float)(100 * rank + k);
    void* pointer = values[i];
    CHECK_OK(tightwire_session_start(session, buckets[i], &pointer, 1));
  }
  for (size_t i = 0; i < 3; ++i) CHECK_OK(tightwire_session_wait(session, buckets[i]));
  CHECK_OK(tightwire_session_commit(session, NULL));
  for (int k = 0; k < size * kPart; ++k) {
    const int owner = k / kPart;
    const double sum = size * k + 100 * (size * (size - 1) / 2);
    if (owner == rank) errors[0] = fmax(errors[0], fabs((double)values[0][k] - sum));
    errors[1] = fmax(errors[1], fabs((double)values[1][k] - (100 * owner + k)));
    errors[2] = fmax(errors[2], fabs((double)values[2][k] - (100 * (size - 1) + k)));
  }
  /* Of each contribution half a step of int8. */
  const double bound = compressed ? size * (100.0 * size + kMostRanks * kPart) / 127 / 2 : 0;
  for (int i = 0; i < 3; ++i) CHECK(errors[i] <= bound);
  if (compressed && size > 1) CHECK(errors[0] > 0 && errors[1] > 0);
  tightwire_session_close(session);
}

/* Ranks that drifted apart are told so, all alike; those that did not are not. */
static void check_comparing(tightwire_communicator* communicator) {
  const int rank = tightwire_communicator_rank(communicator), size = tightwire_communicator_size(communicator);
  float momentum[100] = {0}, weight[100] = {0};
  char seed[2] = {(char)('0' + rank), 0};
  const tightwire_replica replicas[] = {
      {.struct_size = sizeof(tightwire_replica), .name = "seed", .bytes = seed, .size = 1, .must_differ = 1},
      {.struct_size = sizeof(tightwire_replica), .name = "momentum", .bytes = momentum, .size = sizeof momentum},
      {.struct_size = sizeof(tightwire_replica), .name = "weight", .bytes = weight, .size = sizeof weight}};
  CHECK_OK(tightwire_communicator_compare(communicator, 100, replicas, 3, 20000));
  if (size == 1) return;
  if (rank == 1) momentum[99] = 1e-30f;
  CHECK_FAILS(tightwire_communicator_compare(communicator, 200, replicas, 3, 20000), TIGHTWIRE_MISMATCH,
              "after step 200: \"momentum\": rank 1 has hash ");
  momentum[99] = 0;
  if (rank < 2) seed[0] = '7';
  CHECK_FAILS(tightwire_communicator_compare(communicator, 300, replicas, 3, 20000), TIGHTWIRE_MISMATCH,
              "\"seed\": ranks 0 and 1 all have 7");
}

/* One rank's arguments are refused: the others hear of it at once, and the next call is the same one on all ranks. */
static void check_refused_arguments(tightwire_communicator* communicator) {
  const int rank = tightwire_communicator_rank(communicator), size = tightwire_communicator_size(communicator);
  const tightwire_replica replica = {.struct_size = sizeof(tightwire_replica), .name = "weight"};
  uint64_t* values = malloc((size_t)size * sizeof(uint64_t));
  CHECK(values != NULL);
  if (rank == size - 1) {
    CHECK_FAILS(tightwire_communicator_gather(communicator, 1, 20000, NULL), TIGHTWIRE_INVALID_ARGUMENT, "null");
    CHECK_FAILS(tightwire_communicator_gather(communicator, 1, 0, values), TIGHTWIRE_INVALID_ARGUMENT, "timeout_ms");
    CHECK_FAILS(tightwire_communicator_compare(communicator, 1, NULL, 1, 20000), TIGHTWIRE_INVALID_ARGUMENT, "null");
    CHECK_FAILS(tightwire_communicator_compare(communicator, 2, &replica, 1, -1), TIGHTWIRE_INVALID_ARGUMENT,
                "timeout_ms");
  } else {
    for (int i = 0; i < 2; ++i)
      CHECK_FAILS(tightwire_communicator_gather(communicator, 1, 20000, values), TIGHTWIRE_MISMATCH,
                  "called it with arguments that were refused");
    CHECK_FAILS(tightwire_communicator_compare(communicator, 1, &replica, 1, 20000), TIGHTWIRE_MISMATCH,
                "the replicas are null");
    CHECK_FAILS(tightwire_communicator_compare(communicator, 2, &replica, 1, 20000), TIGHTWIRE_MISMATCH,
                "timeout_ms must be positive");
  }
  CHECK_OK(tightwire_communicator_gather(communicator, 5, INT64_MAX, values));
  for (int i = 0; i < size; ++i) CHECK(values[i] == 5);
  CHECK_OK(tightwire_communicator_compare(communicator, 3, &replica, 1, INT64_MAX));
  free(values);
}

static void run_rank(tightwire_communicator* communicator) {
  const int rank = tightwire_communicator_rank(communicator), size = tightwire_communicator_size(communicator);
  CHECK(rank >= 0 && rank < size && strlen(tightwire_communicator_description(communicator)) > 0);
  tightwire_session* session = open_session(communicator);
  check_description(session);

  static const double kStep = 2.0 / 127; /* an int8 step of values up to about 2 in magnitude */
  float* weight = malloc(kCount * sizeof(float));
  float bias[kBias];
  CHECK(weight != NULL);
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kCount; ++i) weight[i] = gradient_of(rank, step, i);
    for (int i = 0; i < kBias; ++i) bias[i] = (float)(rank + i);
    void* bias_pointer = bias;
    void* weight_pointer = weight;
    CHECK_OK(tightwire_session_start(session, 1, &weight_pointer, 1));
    CHECK_OK(tightwire_session_start(session, 0, &bias_pointer, 1));
    CHECK_OK(tightwire_session_wait(session, 0));
    CHECK_OK(tightwire_session_wait(session, 1));
    CHECK_OK(tightwire_session_wait(session, 1)); /* again: harmless */
    int32_t kept = 0;
    CHECK_OK(tightwire_session_commit(session, &kept));
    CHECK(kept == 1);
    for (int i = 0; i < kBias; ++i) CHECK(bias[i] == (float)i + (float)(size - 1) / 2);
    for (int i = 0; i < kCount; ++i) {
      double mean = 0;
      for (int r = 0; r < size; ++r) mean += (double)gradient_of(r, step, i) / size;
      worst = fmax(worst, fabs((double)weight[i] - mean));
    }
    check_same_on_all_ranks(communicator, hash_of(weight, kCount));
  }
  CHECK(worst < size * kStep && (size == 1 || worst > 0));
  check_statistics(session, size);

  /* A step undone leaves the Session usable, and its residuals as they were. */
  void* both[] = {weight, bias};
  CHECK_OK(tightwire_session_all_reduce(session, both, 2));
  CHECK_OK(tightwire_session_rollback(session));
  CHECK_OK(tightwire_session_all_reduce(session, both, 2));
  CHECK_OK(tightwire_session_commit(session, NULL));
  check_same_on_all_ranks(communicator, hash_of(weight, kCount));
  check_checkpoint(communicator, session, weight);
  check_scaling(communicator);
  for (int compressed = 0; compressed < 2; ++compressed) check_operations(communicator, compressed);
  check_comparing(communicator);
  if (size > 1) check_refused_arguments(communicator);
  free(weight);
  tightwire_session_close(session);
}

static void* run_thread(void* communicator) {
  run_rank(communicator);
  tightwire_communicator_close(communicator);
  return NULL;
}

enum { kMostThreads = 8 };
static void run_threads(int size, void* (*body)(void* communicator)) {
  tightwire_communicator* communicators[kMostThreads];
  pthread_t threads[kMostThreads];
  CHECK(size >= 1 && size <= kMostThreads);
  CHECK_OK(tightwire_communicator_in_process(size, communicators));
  for (int rank = 0; rank < size; ++rank) CHECK(pthread_create(&threads[rank], NULL, body, communicators[rank]) == 0);
  for (int rank = 0; rank < size; ++rank) CHECK(pthread_join(threads[rank], NULL) == 0);
}

/* A job of three ranks ends, and one of two goes on with the states of all three: what was dropped is not lost. */
enum { kBefore = 3, kAfter = 2 };
static void* states[kBefore];
static size_t state_sizes[kBefore];
static double owed[kCount]; /* exact sums less those that were given */

static tightwire_session* open_sums(tightwire_communicator* communicator) {
  const int64_t shape[] = {kRows, kColumns};
  tightwire_session* session = NULL;
  CHECK_OK(tightwire_session_open(communicator, "int4:block=64 operation=sum timeout=20", &session));
  CHECK_OK(tightwire_session_add(session, "weight", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_OK(tightwire_session_seal(session));
  return session;
}

/* Rank 0 keeps the account. `all` is the sum that the step is to give, or none. */
static void sum_step(tightwire_session* session, int rank, float* weight, const double* all) {
  void* const pointer = weight;
  CHECK_OK(tightwire_session_all_reduce(session, &pointer, 1));
  CHECK_OK(tightwire_session_commit(session, NULL));
  for (int i = 0; rank == 0 && i < kCount; ++i) owed[i] += (all == NULL ? 0 : all[i]) - (double)weight[i];
}
static double most_owed(void) {
  double most = 0;
  for (int i = 0; i < kCount; ++i) most = fmax(most, fabs(owed[i]));
  return most;
}

static void* leave_states(void* argument) {
  tightwire_communicator* communicator = argument;
  const int rank = tightwire_communicator_rank(communicator);
  tightwire_session* session = open_sums(communicator);
  float* weight = malloc(kCount * sizeof(float));
  double* all = calloc(kCount, sizeof(double));
  CHECK(weight != NULL && all != NULL);
  for (int i = 0; i < kCount; ++i) {
    weight[i] = gradient_of(rank, 0, i);
    for (int r = 0; r < kBefore; ++r) all[i] += (double)gradient_of(r, 0, i);
  }
  sum_step(session, rank, weight, all);
  const void* bytes = NULL;
  CHECK_OK(tightwire_session_save(session, &bytes, &state_sizes[rank]));
  states[rank] = malloc(state_sizes[rank]);
  CHECK(states[rank] != NULL);
  memcpy(states[rank], bytes, state_sizes[rank]);
  free(weight);
  free(all);
  tightwire_session_close(session);
  tightwire_communicator_close(communicator);
  return NULL;
}

static void* take_states_up(void* argument) {
  tightwire_communicator* communicator = argument;
  const int rank = tightwire_communicator_rank(communicator);
  tightwire_session* session = open_sums(communicator);
  const void* reversed[kBefore];
  size_t sizes[kBefore];
  for (int r = 0; r < kBefore; ++r) {
    reversed[r] = states[kBefore - 1 - r];
    sizes[r] = state_sizes[kBefore - 1 - r];
  }
  CHECK(tightwire_session_restore_ranks(session, reversed, sizes, kBefore - 1) != TIGHTWIRE_OK); /* one is missing */
  CHECK_OK(tightwire_session_restore_ranks(session, reversed, sizes, kBefore));
  float* weight = malloc(kCount * sizeof(float));
  CHECK(weight != NULL);
  for (int step = 0; step < 12; ++step) {
    for (int i = 0; i < kCount; ++i) weight[i] = 0;
    sum_step(session, rank, weight, NULL);
  }
  free(weight);
  tightwire_session_close(session);
  tightwire_communicator_close(communicator);
  return NULL;
}

static void another_number_of_ranks(void) {
  run_threads(kBefore, leave_states);
  CHECK(most_owed() > 0.1);
  run_threads(kAfter, take_states_up);
  CHECK(most_owed() < 1e-4);
  for (int r = 0; r < kBefore; ++r) free(states[r]);
}

int main(int argc, char** argv) {
  CHECK_OK(tightwire_require_abi(TIGHTWIRE_ABI_VERSION));
  if (argc < 2) {
    tightwire_communicator* communicator = NULL;
    CHECK_OK(tightwire_communicator_from_environment(&communicator));
    run_rank(communicator);
    const int size = tightwire_communicator_size(communicator);
    if (tightwire_communicator_rank(communicator) == 0) printf("%d ranks agree\n", size);
    tightwire_communicator_close(communicator);
    return 0;
  }
  const int size = atoi(argv[1]);
  run_threads(size, run_thread);
  if (size == kBefore) another_number_of_ranks();
  printf("%d ranks agree\n", size);
  return 0;
}
