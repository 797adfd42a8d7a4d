#include <tightwire/cuda/access.cuh>
#include <tightwire/detail/philox.hpp>

#include "kernel_launch.cuh"
#include "random_kernels.hpp"

namespace tightwire::cuda::detail {
namespace {

constexpr unsigned kThreadsDrawn = 256;

__device__ std::uint64_t run_begin(const DrawnElements& drawn, std::uint64_t run) {
  return drawn.elements / drawn.runs * run + drawn.elements % drawn.runs * run / drawn.runs;
}
/// As sparse::draw.
__device__ std::uint32_t draw(const DrawnElements& drawn, std::uint64_t run) {
  constexpr std::uint32_t kPurpose = 0x646e6172u;
  const auto random = tightwire::detail::Philox::at(
      {static_cast<std::uint32_t>(run / 4), static_cast<std::uint32_t>((run / 4) >> 32), drawn.use, drawn.parameter},
      static_cast<std::uint32_t>(drawn.seed) ^ kPurpose, static_cast<std::uint32_t>(drawn.seed >> 32));
  // Selected, as an array that is indexed would be in local memory.
  const unsigned which = static_cast<unsigned>(run % 4);
  const std::uint32_t word = which == 0   ? random.words[0]
                             : which == 1 ? random.words[1]
                             : which == 2 ? random.words[2]
                                          : random.words[3];
  const std::uint64_t begin = run_begin(drawn, run), end = run_begin(drawn, run + 1);
  return static_cast<std::uint32_t>(begin + (std::uint64_t{word} * (end - begin) >> 32));
}

__device__ float element_of(const std::byte* data, ElementType type, std::uint64_t i) {
  return type == ElementType::f32 ? tightwire::detail::from_bits(load_any<std::uint32_t>(data + 4 * i))
                                  : widened(type, load_any<std::uint16_t>(data + 2 * i));
}
__device__ void put_element(std::byte* data, ElementType type, std::uint64_t i, float x) {
  if (type == ElementType::f32)
    store_any(data + 4 * i, tightwire::detail::to_bits(x));
  else
    store_any(data + 2 * i, static_cast<std::uint16_t>(narrowed(type, x)));
}
/// What an element is in the residual as if the step had not happened; 0 where that is overwritten.
__device__ float undone(const float* before, const float* after, std::uint64_t i) {
  return before == after ? 0.0f : before[i];
}
__device__ std::uint64_t first_of_thread() { return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

__global__ void gather_drawn_kernel(const __grid_constant__ GatherJob job) {
  const std::uint64_t run = first_of_thread();
  if (run >= job.drawn.runs) return;
  const std::uint32_t i = draw(job.drawn, run);
  job.drawn.indices[run] = i;
  const float x = element_of(job.data, job.type, i);
  job.values[run] = one_nan(job.before != nullptr ? x + job.before[i] : job.weight * x);
}

__global__ void keep_drawn_kernel(const __grid_constant__ KeepJob job) {
  const std::uint64_t i = first_of_thread();
  if (i >= job.drawn.elements) return;
  const float sum = element_of(job.data, job.type, i) + job.before[i];
  job.after[i] = is_finite(sum) ? sum : undone(job.before, job.after, i);
  if (!is_finite(sum)) atomicAdd(job.forgotten, 1ull);
}

/// What was drawn is not kept, and not forgotten.
__global__ void release_drawn_kernel(const __grid_constant__ KeepJob job) {
  const std::uint64_t run = first_of_thread();
  if (run >= job.drawn.runs) return;
  if (is_finite(job.values[run]))
    job.after[job.drawn.indices[run]] = 0.0f;
  else
    atomicAdd(job.forgotten, ~0ull);
}

__global__ void scatter_drawn_kernel(const __grid_constant__ ScatterJob job) {
  const std::uint64_t run = first_of_thread();
  if (run >= job.drawn.runs) return;
  const std::uint32_t i = job.drawn.indices[run];
  const float value = job.values[run], held = rounded(job.type, value);
  put_element(job.data, job.type, i, one_nan(value));
  if (is_finite(value) && !is_finite(held)) atomicAdd(job.overflows, 1ull);
  if (job.residual == nullptr) return;
  if (!is_finite(value)) {
    job.residual[i] = undone(job.before, job.residual, i);
    return;
  }
  float kept = job.residual[i];
  if (job.lost != nullptr) kept += job.lost[run];
  if (run >= job.own_begin && run - job.own_begin < job.own_count) {
    float lost = value - held;
    if (job.owner_lost != nullptr) lost += job.owner_lost[run - job.own_begin];
    if (is_finite(lost)) kept += lost * job.divisor;
  }
  job.residual[i] = kept;
}

struct ReportDrawn {
  unsigned long long* counter;
  std::uint64_t* reported;
};
__global__ void report_drawn_kernel(const __grid_constant__ ReportDrawn job) {
  *job.reported += *job.counter;
  *job.counter = 0;
}

Subject of(int rank) { return {"elements drawn at random", rank}; }

/// So many, no more in a block than it takes.
LaunchSize threads(std::uint64_t count) {
  const bool few = count < kThreadsDrawn;
  return {(count + kThreadsDrawn - 1) / kThreadsDrawn,
          few ? (static_cast<unsigned>(count) + 31) / 32 * 32 : kThreadsDrawn};
}

}  // namespace

void load_random_kernels(int rank) {
  load(gather_drawn_kernel, of(rank));
  load(keep_drawn_kernel, of(rank));
  load(release_drawn_kernel, of(rank));
  load(scatter_drawn_kernel, of(rank));
  load(report_drawn_kernel, of(rank));
}
void gather_drawn(const GatherJob& job, int rank, Stream stream) {
  launch("gather_drawn", gather_drawn_kernel, job, threads(job.drawn.runs), of(rank), stream);
}
void keep_undrawn(const KeepJob& job, int rank, Stream stream) {
  launch("keep_undrawn", keep_drawn_kernel, job, threads(job.drawn.elements), of(rank), stream);
  launch("keep_undrawn", release_drawn_kernel, job, threads(job.drawn.runs), of(rank), stream);
}
void scatter_drawn(const ScatterJob& job, int rank, Stream stream) {
  launch("scatter_drawn", scatter_drawn_kernel, job, threads(job.drawn.runs), of(rank), stream);
}
void report_drawn(unsigned long long* counter, std::uint64_t* reported, int rank, Stream stream) {
  launch("report_drawn", report_drawn_kernel, ReportDrawn{counter, reported}, {1, 1}, of(rank), stream);
}

}  // namespace tightwire::cuda::detail
