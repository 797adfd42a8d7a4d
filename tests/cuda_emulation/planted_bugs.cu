// Kernels with one mistake each, of the kinds that a device may let pass for years, and sound ones beside them.
#include "planted_bugs.hpp"

namespace cuda_emulation {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ int opposite(int i) { return kElements - 1 - i; }
float reversed(int i) { return static_cast<float>(kElements - i); }
float same(int i) { return static_cast<float>(i + 1); }
float first(int) { return 1.0f; }
float total(int) { return kElements * (kElements + 1) / 2.0f; }
float neighbours(int i) { return 2.0f * static_cast<float>(i - i % 2) + 3.0f; }

__global__ void reverses_through_shared_memory(const float* x, float* y) {
  __shared__ float shared[kElements];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = shared[opposite(static_cast<int>(threadIdx.x))];
}
__global__ void adds_atomically(const float* x, float* y) {
  __shared__ float sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, x[threadIdx.x]);
  __syncthreads();
  y[threadIdx.x] = sum;
}
__global__ void polls_a_flag(const float* x, float* y) {
  __shared__ volatile int flag;
  __shared__ volatile float value;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1) {
    value = x[0];
    __threadfence_block();
    flag = 1;
  }
  while (flag == 0) {
  }
  y[threadIdx.x] = value;
}
__global__ void adds_its_neighbour(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x] + __shfl_xor_sync(kAllLanes, x[threadIdx.x], 1);
}

__global__ void lacks_a_barrier(const float* x, float* y) {
  __shared__ float shared[kElements];
  shared[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = shared[opposite(static_cast<int>(threadIdx.x))];
}
__global__ void lacks_a_barrier_after_one_thread(const float* x, float* y) {
  __shared__ float shared;
  if (threadIdx.x == 0) shared = x[0];
  y[threadIdx.x] = shared;
}
__global__ void lacks_a_barrier_before_writing_again(const float* x, float* y) {
  __shared__ float shared[kElements];
  for (int round = 0; round < 2; ++round) {
    shared[threadIdx.x] = x[threadIdx.x] - static_cast<float>(1 - round);
    __syncthreads();
    const float seen = shared[opposite(static_cast<int>(threadIdx.x))];
    y[threadIdx.x] = round == 0 ? seen : y[threadIdx.x] + 1 == seen ? seen : -1.0f;
  }
}
__global__ void lacks_a_warp_barrier(const float* x, float* y) {
  __shared__ volatile float shared[kElements];
  shared[threadIdx.x] = x[threadIdx.x];
  const float from_next = shared[threadIdx.x ^ 1u];
  y[threadIdx.x] = x[threadIdx.x] + from_next;
}
__global__ void writes_past_the_tail(const float* x, float* y) {
  for (unsigned i = threadIdx.x; i <= kElements; i += blockDim.x) y[i] = i < kElements ? x[i] : 0.0f;
}
__global__ void reads_past_the_tail(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x] + 0.0f * x[threadIdx.x + 1];
}
__global__ void leaves_the_tail_unwritten(const float* x, float* y) {
  for (unsigned i = threadIdx.x; i < kElements - 1; i += blockDim.x) y[i] = x[i];
}
__global__ void writes_past_shared_memory(const float* x, float* y) {
  extern __shared__ float shared[];
  shared[threadIdx.x + 1] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = shared[threadIdx.x + 1];
}
__global__ void reads_what_nobody_wrote(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x] + 0.0f * y[threadIdx.x];
}
__global__ void reads_shared_memory_nobody_wrote(const float* x, float* y) {
  __shared__ float shared[kElements];
  if (threadIdx.x != 5) shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = shared[threadIdx.x];
}
__global__ void reads_off_the_alignment(const float* x, float* y) {
  if (threadIdx.x != 0) return;
  const float4 four = *reinterpret_cast<const float4*>(x + 1);
  y[1] = four.x, y[2] = four.y, y[3] = four.z, y[4] = four.w;
}
__global__ void has_a_barrier_for_some(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 100) __syncthreads();
}
__global__ void returns_before_a_barrier(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x >= 200) return;
  __syncthreads();
}
__global__ void shuffles_with_half_a_warp(const float* x, float* y) {
  float value = x[threadIdx.x];
  if (threadIdx.x % 32 < 16) value += __shfl_xor_sync(kAllLanes, value, 1);
  y[threadIdx.x] = value;
}
__global__ void shuffles_outside_its_mask(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x] + __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);
}

template <auto Kernel>
void launch(const float* x, float* y, cudaStream_t stream) {
  Kernel<<<1, kElements, 0, stream>>>(x, y);
}
void launch_with_shared(const float* x, float* y, cudaStream_t stream) {
  writes_past_shared_memory<<<1, kElements, kElements * sizeof(float), stream>>>(x, y);
}
void launch_on_host_memory(const float*, float* y, cudaStream_t stream) {
  static float host[kElements];
  reverses_through_shared_memory<<<1, kElements, 0, stream>>>(host, y);
}
/// What comes before is on another stream, and nothing makes this one wait for it.
void launch_without_a_wait(const float* x, float* y, cudaStream_t) {
  static cudaStream_t other = [] {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return stream;
  }();
  float* between = nullptr;
  cudaMalloc(&between, kElements * sizeof(float));
  cudaMemset(between, 0, kElements * sizeof(float));
  cudaDeviceSynchronize();
  cudaStream_t later = nullptr;
  cudaStreamCreateWithFlags(&later, cudaStreamNonBlocking);
  reverses_through_shared_memory<<<1, kElements, 0, later>>>(x, between);
  reverses_through_shared_memory<<<1, kElements, 0, other>>>(between, y);
}

constexpr Planted kSound[] = {
    {"reverses_through_shared_memory", launch<reverses_through_shared_memory>, reversed},
    {"adds_atomically", launch<adds_atomically>, total},
    {"polls_a_flag", launch<polls_a_flag>, first},
    {"adds_its_neighbour", launch<adds_its_neighbour>, neighbours},
};
constexpr Planted kFaulty[] = {
    {"lacks_a_barrier", launch<lacks_a_barrier>, reversed},
    {"lacks_a_barrier_after_one_thread", launch<lacks_a_barrier_after_one_thread>, first},
    {"lacks_a_barrier_before_writing_again", launch<lacks_a_barrier_before_writing_again>, reversed},
    {"lacks_a_warp_barrier", launch<lacks_a_warp_barrier>, neighbours},
    {"writes_past_the_tail", launch<writes_past_the_tail>, same},
    {"reads_past_the_tail", launch<reads_past_the_tail>, same},
    {"leaves_the_tail_unwritten", launch<leaves_the_tail_unwritten>, same},
    {"writes_past_shared_memory", launch_with_shared, same},
    {"reads_what_nobody_wrote", launch<reads_what_nobody_wrote>, same},
    {"reads_shared_memory_nobody_wrote", launch<reads_shared_memory_nobody_wrote>, same},
    {"reads_off_the_alignment", launch<reads_off_the_alignment>, same},
    {"has_a_barrier_for_some", launch<has_a_barrier_for_some>, same},
    {"returns_before_a_barrier", launch<returns_before_a_barrier>, same},
    {"shuffles_with_half_a_warp", launch<shuffles_with_half_a_warp>, neighbours},
    {"shuffles_outside_its_mask", launch<shuffles_outside_its_mask>, neighbours},
    {"reads_host_memory", launch_on_host_memory, reversed},
    {"lacks_a_wait_for_a_stream", launch_without_a_wait, same},
};

}  // namespace

std::span<const Planted> sound_kernels() { return kSound; }
std::span<const Planted> faulty_kernels() { return kFaulty; }

}  // namespace cuda_emulation
