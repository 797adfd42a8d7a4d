/* A data-parallel trainer that knows MPI and nothing of tightwire. As it is:
 *     mpirun -np 2 mpi_trainer
 * and with its gradients compressed:
 *     mpirun -np 2 -x LD_PRELOAD=/path/libtightwire_mpi.so \
 *       -x TIGHTWIRE_MPI="int8:block=256 threshold=65536 calls-per-step=1 report=on" mpi_trainer */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kIn = 256, kOut = 128, kBatch = 16, kSteps = 60 };
static float weight[kOut * kIn], teacher[kOut * kIn], gradient[kOut * kIn];

static float uniform(unsigned* state) { /* from -1 to 1 */
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

int main(int count, char** words) {
  int rank, size;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  unsigned shared = 1, own = 100u + (unsigned)rank;
  for (int i = 0; i < kOut * kIn; ++i) teacher[i] = uniform(&shared);
  float loss = 0, first = 0;
  for (int step = 0; step < kSteps; ++step) {
    loss = 0;
    for (int i = 0; i < kOut * kIn; ++i) gradient[i] = 0;
    for (int sample = 0; sample < kBatch; ++sample) {
      float x[kIn];
      for (int i = 0; i < kIn; ++i) x[i] = uniform(&own);
      for (int o = 0; o < kOut; ++o) {
        float error = 0;
        for (int i = 0; i < kIn; ++i) error += (weight[o * kIn + i] - teacher[o * kIn + i]) * x[i];
        for (int i = 0; i < kIn; ++i) gradient[o * kIn + i] += error * x[i];
        loss += error * error / (kOut * kBatch);
      }
    }
    MPI_Allreduce(MPI_IN_PLACE, gradient, kOut * kIn, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (step == 0) first = loss;
    for (int i = 0; i < kOut * kIn; ++i) weight[i] -= 0.1f * gradient[i] / (float)(kBatch * size);
  }
  double sum = 0, least = 0, most = 0; /* of the weights: the same on all ranks? */
  for (int i = 0; i < kOut * kIn; ++i) sum += (double)weight[i] * (i % 97 + 1);
  MPI_Allreduce(&sum, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&sum, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0)
    printf("loss %.2f, then %.3f; weights are the same on all ranks: %s\n", (double)first / size, (double)loss / size,
           least == most ? "yes" : "no");
  MPI_Finalize();
  return 0;
}
