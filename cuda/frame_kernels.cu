
#include "frame_kernels.hpp"
#include "kernel_launch.cuh"

namespace tightwire::cuda::detail {
namespace {

using Number = unsigned long long;
constexpr unsigned kWords = sizeof(FrameHeader) / sizeof(std::uint64_t);
static_assert(offsetof(FrameHeader, sender) == 44 && offsetof(FrameHeader, nonfinite) == 56 && kWords == 8);
constexpr unsigned kSenderWord = 5, kCountWord = 7;

/// The sender is the upper half of its word.
__device__ std::uint64_t expected_word(const std::uint64_t* expected, unsigned word, unsigned sender) {
  const std::uint64_t value = expected[word];
  return word == kSenderWord ? (value & 0xffffffffu) | std::uint64_t{sender} << 32 : value;
}
__device__ std::uint64_t count_of(const std::byte* frame) {
  return reinterpret_cast<const std::uint64_t*>(frame)[kCountWord];
}

__global__ void begin_frames_kernel(const __grid_constant__ BeginJob job) {
  const auto* const contribution = reinterpret_cast<const std::uint64_t*>(&job.contribution);
  const auto* const result = reinterpret_cast<const std::uint64_t*>(&job.result);
  for (unsigned i = threadIdx.x; i < job.count * kWords; i += blockDim.x)
    reinterpret_cast<std::uint64_t*>(job.contributions.first + i / kWords * job.contributions.stride)[i % kWords] =
        contribution[i % kWords];
  if (threadIdx.x < kWords) reinterpret_cast<std::uint64_t*>(job.result_frame)[threadIdx.x] = result[threadIdx.x];
  if (threadIdx.x == 0) *job.met = {};
}

__global__ void check_frames_kernel(const __grid_constant__ CheckJob job) {
  __shared__ Number counted;
  __shared__ unsigned first_refused, refused;
  if (threadIdx.x == 0) {
    counted = 0;
    refused = 0;
    first_refused = job.ranks;
  }
  __syncthreads();
  const unsigned rank = threadIdx.x;
  const auto* const expected = reinterpret_cast<const std::uint64_t*>(&job.expected);
  const auto* const got = reinterpret_cast<const std::uint64_t*>(job.received.first + rank * job.received.stride);
  if (rank < job.ranks && holds(job.from, rank)) {
    bool same = true;
    for (unsigned word = 1; word < kCountWord; ++word) same = same && got[word] == expected_word(expected, word, rank);
    if (same) {
      atomicAdd(&counted, static_cast<Number>(got[kCountWord]));
    } else {
      atomicAdd(&refused, 1u);
      atomicMin(&first_refused, rank);
    }
  }
  __syncthreads();
  if (rank == first_refused && job.report->refused == 0)
    for (unsigned word = 0; word < kWords; ++word) {
      reinterpret_cast<std::uint64_t*>(&job.report->got)[word] = got[word];
      reinterpret_cast<std::uint64_t*>(&job.report->expected)[word] = expected_word(expected, word, rank);
    }
  __syncthreads();
  if (threadIdx.x != 0) return;
  job.report->refused += refused;
  Number sum = counted;
  if (job.met != nullptr) sum += job.met->contribution + job.met->result;
  if (job.own_frame != nullptr) sum += count_of(job.own_frame);
  if (job.into_frame != nullptr)
    reinterpret_cast<std::uint64_t*>(job.into_frame)[kCountWord] = sum;
  else
    job.report->nonfinite += sum;
}

Subject of(int rank) { return {"headers", rank}; }

}  // namespace

void load_frame_kernels(int rank) {
  load(begin_frames_kernel, of(rank));
  load(check_frames_kernel, of(rank));
}
void begin_frames(const BeginJob& job, int rank, Stream stream) {
  launch("begin_frames", begin_frames_kernel, job, {1, 64}, of(rank), stream);
}
void check_frames(const CheckJob& job, int rank, Stream stream) {
  launch("check_frames", check_frames_kernel, job, {1, (job.ranks + 31) / 32 * 32}, of(rank), stream);
}

}  // namespace tightwire::cuda::detail
