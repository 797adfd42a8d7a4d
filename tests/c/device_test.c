/* libtightwire_c_device from C99, on a machine that may have no GPU and no NCCL: then that is what it says. With an
 * argument: steps of all its GPUs over NCCL communicators of this program, or 77 where there is none. */
#define _POSIX_C_SOURCE 200809L
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <tightwire/tightwire_device.h>

#include "check.h"

enum { kRows = 96, kColumns = 64, kCount = kRows * kColumns, kSteps = 3, kMostDevices = 16, kSkipped = 77 };
#define CHECK_CUDA(call) CHECK((call) == cudaSuccess)

static void without_a_device(void) {
  tightwire_communicator* host = NULL;
  tightwire_device_communicator* communicator = NULL;
  CHECK_FAILS(tightwire_device_communicator_adopt_nccl(&host, -1, &communicator), TIGHTWIRE_INVALID_ARGUMENT,
              "timeout_ms is negative");
  CHECK(tightwire_device_communicator_rank(NULL) == -1);
  tightwire_device_session_close(NULL);
  CHECK_OK(tightwire_communicator_in_process(1, &host));
  const tightwire_status status = tightwire_device_communicator_staged(host, 0, &communicator);
  if (status == TIGHTWIRE_OK) {
    CHECK(tightwire_device_communicator_size(communicator) == 1);
    tightwire_device_communicator_close(communicator);
  } else {
    CHECK(status == TIGHTWIRE_UNSUPPORTED && communicator == NULL);
    CHECK(strstr(tightwire_last_error(), "rank 0") != NULL);
  }
  printf("%s\n", status == TIGHTWIRE_OK ? "a device is here" : tightwire_last_error());
  tightwire_communicator_close(host);
}

struct rank {
  int rank, size;
  ncclComm_t nccl;
  uint64_t hash; /* of all results */
};

static float gradient_of(int rank, int step, int i) { return (float)((i * 37 + rank * 11 + step * 5) % 101) / 50.0f; }

/* Steps with int8 and feedback: each is within int8's steps of the mean. */
static void* steps(void* argument) {
  struct rank* at = argument;
  const int64_t shape[] = {kRows, kColumns};
  const size_t bytes = kCount * sizeof(float);
  tightwire_device_communicator* communicator = NULL;
  tightwire_device_session* session = NULL;
  cudaStream_t stream = NULL;
  void* on_device = NULL;
  float* weight = malloc(bytes);
  CHECK(weight != NULL);
  CHECK_CUDA(cudaSetDevice(at->rank));
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaMalloc(&on_device, bytes));
  CHECK_OK(tightwire_device_communicator_adopt_nccl(at->nccl, 20000, &communicator));
  CHECK(tightwire_device_communicator_rank(communicator) == at->rank);
  CHECK(tightwire_device_communicator_size(communicator) == at->size);
  CHECK_OK(tightwire_device_session_open(communicator, "int8:block=64 timeout=20", &session));
  CHECK_OK(tightwire_device_session_add(session, "weight", shape, 2, TIGHTWIRE_FLOAT32, NULL));
  CHECK_OK(tightwire_device_session_seal(session));
  at->hash = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kCount; ++i) weight[i] = gradient_of(at->rank, step, i);
    CHECK_CUDA(cudaMemcpyAsync(on_device, weight, bytes, cudaMemcpyHostToDevice, stream));
    CHECK_OK(tightwire_device_session_all_reduce(session, &on_device, 1, stream));
    CHECK_CUDA(cudaMemcpyAsync(weight, on_device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_OK(tightwire_device_session_commit(session, NULL));
    for (int i = 0; i < kCount; ++i) {
      double mean = 0;
      for (int r = 0; r < at->size; ++r) mean += (double)gradient_of(r, step, i) / at->size;
      CHECK(fabs((double)weight[i] - mean) < 4 * 2.0 / 127);
      uint32_t bits = 0;
      memcpy(&bits, &weight[i], sizeof bits);
      at->hash = at->hash * 31 + bits;
    }
  }
  CHECK_OK(tightwire_device_session_synchronize(session));
  tightwire_device_session_close(session);
  tightwire_device_communicator_close(communicator);
  CHECK_CUDA(cudaFree(on_device));
  CHECK_CUDA(cudaStreamDestroy(stream));
  free(weight);
  return NULL;
}

typedef ncclResult_t (*init_all)(ncclComm_t* communicators, int count, const int* devices);
typedef ncclResult_t (*destroy)(ncclComm_t communicator);

static int on_devices(void) {
  int devices = 0;
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 || library == NULL) {
    printf("skipped: %s\n", library == NULL ? "no NCCL is here" : "no device is here");
    return kSkipped;
  }
  if (devices > kMostDevices) devices = kMostDevices;
  init_all init = NULL;
  destroy end = NULL;
  *(void**)&init = dlsym(library, "ncclCommInitAll");
  *(void**)&end = dlsym(library, "ncclCommDestroy");
  CHECK(init != NULL && end != NULL);
  ncclComm_t communicators[kMostDevices];
  CHECK(init(communicators, devices, NULL) == ncclSuccess);
  struct rank ranks[kMostDevices];
  pthread_t threads[kMostDevices];
  for (int r = 0; r < devices; ++r) {
    ranks[r] = (struct rank){.rank = r, .size = devices, .nccl = communicators[r]};
    CHECK(pthread_create(&threads[r], NULL, steps, &ranks[r]) == 0);
  }
  for (int r = 0; r < devices; ++r) CHECK(pthread_join(threads[r], NULL) == 0);
  for (int r = 0; r < devices; ++r) {
    CHECK(ranks[r].hash == ranks[0].hash);
    CHECK(end(communicators[r]) == ncclSuccess);
  }
  printf("%d devices agree\n", devices);
  return 0;
}

int main(int argc, char** argv) {
  (void)argv;
  if (argc > 1) return on_devices();
  without_a_device();
  return 0;
}
