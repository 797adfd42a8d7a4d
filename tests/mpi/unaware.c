/* A program that knows MPI and nothing of us.
 *
 *     unaware exact       no sum differs from what MPI gives; with a number: and MPI's level of threads is that
 *     unaware close       sums of many floats are within int4's bounds, and not exact; everything else is exact
 *     unaware drifting | conserving       what is dropped in a step is lost for good, or comes with the next steps
 *     unaware misfit      a step does not repeat itself
 *     unaware missing     a rank does not come
 *     unaware exits       a rank exits without MPI_Finalize
 *     unaware past        as exact, with MPI initialized by another call than MPI_Init
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMany = 100003, kFew = 1000 };
static int rank, size, failures;
static float in[kMany], out[kMany], other[kMany];

static void check(int holds, const char* what) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "rank %d: FAILED: %s\n", rank, what);
}

/* Whole numbers, so that exact sums are exact in any order. */
static float value(int of_rank, int i) { return (float)((i * 37 + of_rank * 11) % 201 - 100); }
static float total(int i) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += value(r, i);
  return sum;
}
static void fill(float* at, int count) {
  for (int i = 0; i < count; ++i) at[i] = value(rank, i);
}
/* The largest difference from the sum. */
static float error_of(const float* at, int count) {
  float most = 0;
  for (int i = 0; i < count; ++i) most = fmaxf(most, fabsf(at[i] - total(i)));
  return most;
}
static void check_same_everywhere(const float* at, int count, const char* what) {
  double sum = 0, least, most;
  for (int i = 0; i < count; ++i) sum += (double)at[i] * (i % 89 + 1);
  MPI_Allreduce(&sum, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&sum, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  check(least == most, what);
}
/* int4 drops at most a step, an eighth of the largest magnitude, of each contribution, and of their sum. */
static float bound(void) { return (float)size * (100.0f + 112.5f) / 8.0f; }
static void check_sum(const float* at, int compressed, const char* what) {
  const float error = error_of(at, kMany);
  check(compressed ? error > 0 && error <= bound() : error == 0, what);
  check_same_everywhere(at, kMany, what);
}

static void sums(int compressed) {
  fill(in, kMany);
  MPI_Allreduce(in, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  check_sum(out, compressed, "MPI_Allreduce");
  for (int i = 0; i < kMany; ++i) check(in[i] == value(rank, i), "the contribution is left alone");
  fill(out, kMany);
  MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  check_sum(out, compressed, "MPI_Allreduce in place");

  MPI_Request requests[3]; /* ours, ours, and one of MPI's own */
  int token = rank, got = -1;
  MPI_Status statuses[3];
  fill(other, kMany);
  MPI_Iallreduce(in, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
  MPI_Iallreduce(MPI_IN_PLACE, other, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[1]);
  MPI_Irecv(&got, 1, MPI_INT, (rank + size - 1) % size, 5, MPI_COMM_WORLD, &requests[2]);
  MPI_Send(&token, 1, MPI_INT, (rank + 1) % size, 5, MPI_COMM_WORLD);
  MPI_Waitall(3, requests, statuses);
  check(requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL, "requests are spent");
  check(got == (rank + size - 1) % size, "MPI's own messages");
  check_sum(out, compressed, "MPI_Iallreduce");
  check_sum(other, compressed, "MPI_Iallreduce in place");

  MPI_Request request;
  fill(out, kMany);
  MPI_Iallreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  MPI_Barrier(MPI_COMM_WORLD); /* while it is under way */
  for (int complete = 0; !complete;) MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
  check_sum(out, compressed, "MPI_Test");
}

/* MPI lets programs do so; Open MPI 4.1.4, left to itself, crashes. */
static void freed_with_a_sum_under_way(void) {
  MPI_Comm freed;
  MPI_Request request;
  MPI_Comm_dup(MPI_COMM_WORLD, &freed);
  fill(out, kMany);
  MPI_Iallreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, freed, &request);
  MPI_Comm_free(&freed);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  check_sum(out, 1, "on a communicator that was freed since");
}

static void communicators(int compressed) {
  if (compressed) freed_with_a_sum_under_way();
  for (int turn = 0; turn < 3; ++turn) { /* made and freed, as libraries do */
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    fill(out, kMany);
    MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, reversed);
    check_sum(out, compressed, "on a communicator of the program's");
    MPI_Comm copy;
    MPI_Comm_dup(reversed, &copy);
    fill(out, kMany);
    MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, copy);
    check_sum(out, compressed, "on a copy of it");
    MPI_Comm_free(&reversed);
    MPI_Comm_free(&copy);
  }
  fill(out, kMany);
  MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF);
  for (int i = 0; i < kMany; ++i) check(out[i] == value(rank, i), "alone nothing changes");
}

/* Half of the program to the other half: each gets the sums of the other. */
static void intercommunicator(void) {
  MPI_Comm half, between;
  const int mine = rank % 2;
  MPI_Comm_split(MPI_COMM_WORLD, mine, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - mine, 7, &between);
  fill(in, kMany);
  MPI_Allreduce(in, out, kMany, MPI_FLOAT, MPI_SUM, between);
  for (int i = 0; i < kMany; ++i) {
    float sum = 0;
    for (int r = 1 - mine; r < size; r += 2) sum += value(r, i);
    check(out[i] == sum, "between communicators");
  }
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

static void add(void* more, void* sum, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((float*)sum)[i] += ((const float*)more)[i];
}
static void add_pairs(void* more, void* sum, int* count, MPI_Datatype* type) {
  int twice = 2 * *count;
  add(more, sum, &twice, type);
}

/* Types and operations that amount to sums of floats, and do not say so. */
static void types_and_operations(void) {
  MPI_Op plus, plus_pairs;
  MPI_Datatype renamed, pair;
  MPI_Op_create(add, 1, &plus);
  MPI_Op_create(add_pairs, 1, &plus_pairs);
  MPI_Type_dup(MPI_FLOAT, &renamed);
  MPI_Type_contiguous(2, MPI_FLOAT, &pair);
  MPI_Type_commit(&pair);
  fill(out, kMany);
  MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, plus, MPI_COMM_WORLD);
  check(error_of(out, kMany) == 0, "an operation of the program's");
  fill(out, kMany);
  MPI_Allreduce(MPI_IN_PLACE, out, kMany, renamed, plus, MPI_COMM_WORLD);
  check(error_of(out, kMany) == 0, "a copy of a type");
  fill(out, kMany - 1);
  MPI_Allreduce(MPI_IN_PLACE, out, (kMany - 1) / 2, pair, plus_pairs, MPI_COMM_WORLD);
  check(error_of(out, kMany - 1) == 0, "a type of two floats");
  MPI_Type_free(&pair);
  MPI_Type_free(&renamed);
  MPI_Op_free(&plus);
  MPI_Op_free(&plus_pairs);
}

static void what_is_left_alone(void) {
  intercommunicator();
  types_and_operations();
  static double doubles[kMany];
  static int numbers[kMany];
  for (int i = 0; i < kMany; ++i) doubles[i] = value(rank, i) + 1e-9, numbers[i] = i + rank;
  MPI_Allreduce(MPI_IN_PLACE, doubles, kMany, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, numbers, kMany, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < kMany; ++i) {
    check(fabs(doubles[i] - total(i) - size * 1e-9) < 1e-10, "doubles");
    check(numbers[i] == size * i + size * (size - 1) / 2, "integers");
  }
  fill(out, kMany);
  MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  for (int i = 0; i < kMany; ++i) {
    float most = value(0, i);
    for (int r = 1; r < size; ++r) most = fmaxf(most, value(r, i));
    check(out[i] == most, "maxima");
  }
  fill(out, kFew);
  MPI_Allreduce(MPI_IN_PLACE, out, kFew, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  check(error_of(out, kFew) == 0, "few floats");
  MPI_Allreduce(MPI_IN_PLACE, out, 0, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* The sum of the results of many steps, against that of the exact ones: two calls of one length in each step. */
static float drift(int steps) {
  static float sums[2][kMany];
  memset(sums, 0, sizeof(sums));
  for (int step = 0; step < steps; ++step)
    for (int call = 0; call < 2; ++call) {
      for (int i = 0; i < kMany; ++i) out[i] = value(rank, i) * (call == 0 ? 1.0f : -0.013f);
      MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      for (int i = 0; i < kMany; ++i) sums[call][i] += out[i];
    }
  float most = 0;
  for (int i = 0; i < kMany; ++i) {
    most = fmaxf(most, fabsf(sums[0][i] - (float)steps * total(i)));
    most = fmaxf(most, fabsf(sums[1][i] / -0.013f - (float)steps * total(i)));
  }
  return most;
}

static void misfit(void) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check(MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS, "the first step");
  int code = MPI_Allreduce(MPI_IN_PLACE, out, kMany - 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  check(code != MPI_SUCCESS, "another length is an error");
  MPI_Error_string(code, text, &length);
  check(strstr(text, "call 0 of 1 of a step sums 100002 elements; in the first step it summed 100003") != NULL, text);
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  check(MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS, "and stays one");
  check(MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == code, "with the same code");
}

static void missing(void) {
  MPI_Comm copy;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  const double began = MPI_Wtime();
  if (rank != size - 1)
    check(MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, copy) != MPI_SUCCESS, "it is an error");
  check(MPI_Wtime() - began < 10, "in time");
  MPI_Barrier(MPI_COMM_WORLD);
}

static void exits(void) {
  MPI_Request request;
  MPI_Allreduce(MPI_IN_PLACE, out, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Iallreduce(MPI_IN_PLACE, other, kMany, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  if (rank == 1) exit(3);
  MPI_Barrier(MPI_COMM_WORLD); /* until the job is ended */
}

int main(int count, char** words) {
  const char* mode = count > 1 ? words[1] : "";
  alarm(60);
  if (strcmp(mode, "past") == 0)
    PMPI_Init(&count, &words); /* as Fortran's MPI_Init of some implementations does */
  else
    MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (count > 2) {
    int level = -1;
    MPI_Query_thread(&level);
    check(level == atoi(words[2]), "MPI is initialized for as many threads as it should be");
  }
  if (strcmp(mode, "exact") == 0 || strcmp(mode, "close") == 0 || strcmp(mode, "past") == 0) {
    const int compressed = strcmp(mode, "close") == 0;
    sums(compressed);
    communicators(compressed);
    what_is_left_alone();
  } else if (strcmp(mode, "drifting") == 0) {
    check(drift(50) > 4 * bound(), "what is dropped adds up");
  } else if (strcmp(mode, "conserving") == 0) {
    check(drift(50) < 2 * bound(), "what is dropped comes with the next steps");
  } else if (strcmp(mode, "misfit") == 0) {
    misfit();
  } else if (strcmp(mode, "missing") == 0) {
    missing();
  } else if (strcmp(mode, "exits") == 0) {
    exits();
  } else {
    check(0, "the mode is known");
  }
  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%s: %d failures\n", mode, all);
  MPI_Finalize();
  return all == 0 ? 0 : 1;
}
