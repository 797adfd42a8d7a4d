#include <tightwire/cuda/access.cuh>

#include "choice_kernels.hpp"
#include "kernel_launch.cuh"

namespace tightwire::cuda::detail {
namespace {

constexpr unsigned kChoiceThreads = 256;
constexpr unsigned kWarps = kChoiceThreads / 32, kRounds = kChoiceTile / kChoiceThreads;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ float buffered(const std::byte* data, ElementType type, std::uint64_t i) {
  return type == ElementType::f32 ? tightwire::detail::from_bits(load_any<std::uint32_t>(data + 4 * i))
                                  : widened(type, load_any<std::uint16_t>(data + 2 * i));
}
__device__ std::uint32_t magnitude_of(float x) {
  return tightwire::detail::to_bits(x) & tightwire::detail::kMagnitudeMask;
}
/// What an element is in the residual as if the step had not happened; 0 where that is overwritten.
__device__ float as_before(const float* before, const float* after, std::uint64_t i) {
  return before == after ? 0.0f : before[i];
}
/// The sum of gradient and residual, once the latter was added.
__device__ float sum_of(const ChoiceSource& source, std::uint64_t i) {
  return source.after != nullptr ? source.after[i] : one_nan(buffered(source.data, source.type, i));
}
/// What momentum makes of an element of a gradient: host::ApplyMomentum.
__device__ float with_momentum(const MomentumOnDevice& momentum, float x, const float* before, float* after,
                               std::uint64_t i) {
  const float gathered = momentum.factor * before[i] + x;
  after[i] = gathered;
  return momentum.nesterov ? x + momentum.factor * gathered : gathered;
}
__device__ float added(const ChoiceSource& source, const MomentumOnDevice& momentum, std::uint64_t i) {
  float x = buffered(source.data, source.type, i);
  if (source.momentum_after != nullptr)
    x = with_momentum(momentum, x, source.momentum_before, source.momentum_after, i);
  if (source.before != nullptr) x += source.before[i];
  x = one_nan(x);
  if (source.after != nullptr) source.after[i] = x;
  return x;
}

/// The last of so many that begins at `at` or before.
template <class T, class N>
__device__ const T& entry_of(const T* all, std::uint32_t count, N T::*first, N at) {
  std::uint32_t low = 0, high = count;
#pragma unroll 1
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (all[middle].*first <= at)
      low = middle;
    else
      high = middle;
  }
  return all[low];
}

struct Pass {
  ChoiceTable table;
  std::uint32_t shift;
  bool first;
};
__global__ void count_chosen_kernel(const __grid_constant__ Pass pass) {
  __shared__ std::uint32_t bins[kChoiceBins];
  for (unsigned bin = threadIdx.x; bin < kChoiceBins; bin += kChoiceThreads) bins[bin] = 0;
  __syncthreads();
  const ChoiceTable& table = pass.table;
  const ChoiceSource source = entry_of(table.sources, pass.first ? table.all_sources : table.source_count,
                                       &ChoiceSource::chunks_before, blockIdx.x);
  if (!pass.first && source.group->state->settled != 0) return;
  const std::uint32_t digits = pass.first ? 0 : source.group->state->digits;
  // The first pass has no digits before; the last one has 9 bits, of which the two above them are known.
  const std::uint32_t known = pass.first ? 31 : pass.shift == 0 ? 9 : 20;
  const std::uint64_t begin = std::uint64_t{blockIdx.x - source.chunks_before} * (kTilesInChunk * kChoiceTile);
  const std::uint64_t most = begin + kTilesInChunk * kChoiceTile;
  const std::uint64_t end = most < source.count ? most : source.count;
#pragma unroll 1
  for (std::uint64_t i = begin + threadIdx.x; i < end; i += kChoiceThreads) {
    const std::uint32_t key = magnitude_of(pass.first ? added(source, table.momentum, i) : sum_of(source, i));
    if (key >> known == digits >> known) atomicAdd(&bins[(key >> pass.shift) % kChoiceBins], 1u);
  }
  if (source.group == nullptr) return;
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < kChoiceBins; bin += kChoiceThreads)
    if (bins[bin] != 0) atomicAdd(&source.group->bins[bin], bins[bin]);
}

/// Bins from the largest on, until there are k elements in them: each thread knows how many there are in a few.
__global__ void pick_chosen_kernel(const __grid_constant__ Pass pass) {
  constexpr unsigned kBinsPerThread = kChoiceBins / kChoiceThreads;
  __shared__ std::uint32_t sums[kChoiceThreads];
  const ChoiceGroup& group = pass.table.groups[blockIdx.x];
  if (!pass.first && group.state->settled != 0) return;
  std::uint32_t* const bins = group.bins;
  const unsigned last = kChoiceBins - threadIdx.x * kBinsPerThread;
  std::uint32_t mine = 0;
  for (unsigned bin = last - kBinsPerThread; bin < last; ++bin) mine += bins[bin];
  sums[threadIdx.x] = mine;
  __syncthreads();
  ChoiceState& state = *group.state;
  if (threadIdx.x == 0) {
    if (pass.first) state = {0, group.k, 0, 0, 0, 0};
    std::uint32_t left = state.left;
    unsigned thread = 0;
    for (; sums[thread] < left; ++thread) left -= sums[thread];
    unsigned bin = kChoiceBins - thread * kBinsPerThread - 1;
    for (; bins[bin] < left; --bin) left -= bins[bin];
    state.digits |= bin << pass.shift;
    state.left = left;
  }
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < kChoiceBins; bin += kChoiceThreads) bins[bin] = 0;
}

/// Sums at some places, once residuals were added; a block for each source.
__global__ void sample_chosen_kernel(const __grid_constant__ ChoiceTable table) {
  const ChoiceSource source = table.sources[blockIdx.x];
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < source.sample_count; i += kChoiceThreads) {
    const ChoiceGroup& group = *source.group;
    const std::uint32_t at = source.sample_first + i;
    group.sample[at] = sum_of(source, (group.sample_begin + at * group.sampled) / group.sample_count - source.first);
  }
}
/// Zeros do not reach it, and what is not finite does.
__device__ std::uint32_t threshold_of_sample(const ChoiceGroup& group) {
  const std::uint32_t key = group.of_sample->digits;
  return key == 0 ? 1 : key > tightwire::detail::kInfinityBits ? tightwire::detail::kInfinityBits : key;
}
__global__ void found_chosen_kernel(const __grid_constant__ ChoiceTable table) {
  __shared__ std::uint32_t found;
  const ChoiceSource source = entry_of(table.sources, table.source_count, &ChoiceSource::chunks_before, blockIdx.x);
  if (source.group->sample == nullptr) return;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const std::uint32_t threshold = threshold_of_sample(*source.group);
  const std::uint64_t begin = std::uint64_t{blockIdx.x - source.chunks_before} * (kTilesInChunk * kChoiceTile);
  const std::uint64_t most = begin + kTilesInChunk * kChoiceTile;
  const std::uint64_t end = most < source.count ? most : source.count;
  std::uint32_t mine = 0;
#pragma unroll 1
  for (std::uint64_t i = begin + threadIdx.x; i < end; i += kChoiceThreads)
    mine += magnitude_of(sum_of(source, i)) >= threshold ? 1 : 0;
  if (mine != 0) atomicAdd(&found, mine);
  __syncthreads();
  if (threadIdx.x == 0 && found != 0) atomicAdd(&source.group->state->found, found);
}
/// All that equals the threshold is chosen, too.
__global__ void settle_chosen_kernel(const __grid_constant__ ChoiceTable table) {
  const ChoiceGroup& group = table.groups[blockIdx.x];
  if (threadIdx.x != 0 || group.sample == nullptr) return;
  ChoiceState& state = *group.state;
  if (state.found < group.least || state.found > group.most) return;
  state.digits = threshold_of_sample(group);
  state.left = 0xffffffffu;
  state.settled = 1;
}

/// Zeros are never chosen: none is above a magnitude, and of a k-th that is zero there are no equals.
struct Threshold {
  std::uint32_t key, equals;
  __device__ explicit Threshold(const ChoiceState& state)
      : key(state.digits), equals(state.digits != 0 ? state.left : 0) {}
  __device__ bool equal(std::uint32_t k) const { return equals != 0 && k == key; }
};

__global__ void tile_chosen_kernel(const __grid_constant__ ChoiceTable table) {
  __shared__ std::uint32_t above, equal;
  if (threadIdx.x == 0) above = equal = 0;
  __syncthreads();
  const ChoiceSource source = entry_of(table.sources, table.source_count, &ChoiceSource::tiles_before, blockIdx.x);
  const std::uint32_t tile = blockIdx.x - source.tiles_before;
  const Threshold threshold(*source.group->state);
  const std::uint64_t begin = std::uint64_t{tile} * kChoiceTile + threadIdx.x;
  std::uint32_t my_above = 0, my_equal = 0;
#pragma unroll 1
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::uint64_t i = begin + round * kChoiceThreads;
    const std::uint32_t key = i < source.count ? magnitude_of(sum_of(source, i)) : 0;
    my_above += key > threshold.key ? 1 : 0;
    my_equal += threshold.equal(key) ? 1 : 0;
  }
  if (my_above != 0) atomicAdd(&above, my_above);
  if (my_equal != 0) atomicAdd(&equal, my_equal);
  __syncthreads();
  if (threadIdx.x == 0) source.group->tiles[source.first_tile + tile] = {above, equal};
}

__global__ void sum_chosen_kernel(const __grid_constant__ ChoiceTable table) {
  const ChoiceGroup& group = table.groups[blockIdx.x];
  __shared__ TileCount sums[kChoiceThreads];
  const std::uint32_t each = (group.tile_count + kChoiceThreads - 1) / kChoiceThreads;
  const std::uint32_t begin = each * threadIdx.x;
  const std::uint32_t end = begin + each < group.tile_count ? begin + each : group.tile_count;
  TileCount mine{0, 0};
  for (std::uint32_t tile = begin; tile < end; ++tile) {
    mine.above += group.tiles[tile].above;
    mine.equal += group.tiles[tile].equal;
  }
  sums[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    TileCount before{0, 0};
    for (unsigned thread = 0; thread < kChoiceThreads; ++thread) {
      const TileCount here = sums[thread];
      sums[thread] = before;
      before.above += here.above;
      before.equal += here.equal;
    }
    const Threshold threshold(*group.state);
    group.state->chosen = before.above + (before.equal < threshold.equals ? before.equal : threshold.equals);
  }
  __syncthreads();
  TileCount before = sums[threadIdx.x];
  for (std::uint32_t tile = begin; tile < end; ++tile) {
    const TileCount here = group.tiles[tile];
    group.tiles[tile] = before;
    before.above += here.above;
    before.equal += here.equal;
  }
}

/// Counts of rounds and warps, in the order of elements -> how many are before each. By one warp, two counts to a lane;
/// in the lower half of a word those above, in the upper one those that are equal.
__device__ void add_up_counts(std::uint32_t (&counts)[kRounds * kWarps]) {
  static_assert(kRounds * kWarps == 64);
  const unsigned lane = threadIdx.x;
  const std::uint32_t first = counts[2 * lane], second = counts[2 * lane + 1];
  std::uint32_t sum = first + second;
#pragma unroll 1
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  counts[2 * lane] = sum - first - second;
  counts[2 * lane + 1] = sum - second;
}

__global__ void take_chosen_kernel(const __grid_constant__ ChoiceTable table) {
  __shared__ std::uint32_t counts[kRounds * kWarps];
  const ChoiceSource source = entry_of(table.sources, table.source_count, &ChoiceSource::tiles_before, blockIdx.x);
  const std::uint32_t tile = blockIdx.x - source.tiles_before;
  const Threshold threshold(*source.group->state);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint64_t begin = std::uint64_t{tile} * kChoiceTile + threadIdx.x;
#pragma unroll 1
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::uint64_t i = begin + round * kChoiceThreads;
    const std::uint32_t key = i < source.count ? magnitude_of(sum_of(source, i)) : 0;
    const unsigned above = __ballot_sync(kAllLanes, key > threshold.key);
    const unsigned equal = __ballot_sync(kAllLanes, threshold.equal(key));
    if (lane == 0) counts[round * kWarps + warp] = static_cast<std::uint32_t>(__popc(above) | __popc(equal) << 16);
  }
  __syncthreads();
  if (threadIdx.x < 32) add_up_counts(counts);
  __syncthreads();
  const TileCount before = source.group->tiles[source.first_tile + tile];
  const unsigned lower = (1u << lane) - 1;
#pragma unroll 1
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::uint64_t i = begin + round * kChoiceThreads;
    const float x = i < source.count ? sum_of(source, i) : 0.0f;
    const std::uint32_t key = magnitude_of(x);
    const unsigned above = __ballot_sync(kAllLanes, key > threshold.key);
    const unsigned equal = __ballot_sync(kAllLanes, threshold.equal(key));
    const std::uint32_t count = counts[round * kWarps + warp];
    const std::uint32_t rank_above = before.above + count % 65536 + static_cast<std::uint32_t>(__popc(above & lower));
    const std::uint32_t rank_equal = before.equal + count / 65536 + static_cast<std::uint32_t>(__popc(equal & lower));
    const bool chosen = key > threshold.key || (threshold.equal(key) && rank_equal < threshold.equals);
    if (chosen) {
      const std::uint32_t at = rank_above + (rank_equal < threshold.equals ? rank_equal : threshold.equals);
      source.group->places[at] = source.first + static_cast<std::uint32_t>(i);
      source.group->values[at] = x;
    } else if (!is_finite(x)) {
      atomicAdd(&source.group->state->forgotten, 1ull);
    }
    if (source.after != nullptr && (chosen || !is_finite(x)))
      source.after[i] = is_finite(x) ? 0.0f : as_before(source.before, source.after, i);
    if (source.momentum_after == nullptr) continue;
    if (chosen && table.momentum.masking)
      source.momentum_after[i] = 0.0f;
    else if (!is_finite(x))
      source.momentum_after[i] = as_before(source.momentum_before, source.momentum_after, i);
  }
}

__global__ void change_chosen_kernel(const __grid_constant__ ChangeJob job) {
  const std::uint64_t number = job.begin + std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (number >= job.end) return;
  const ChangeRun& run = entry_of(job.runs, job.run_count, &ChangeRun::first, number);
  const ElementChange change = job.changes[number];
  const float x = tightwire::detail::from_bits(change.bits);
  if (run.kind == ChangeKind::add_residual)
    run.after[change.index] += x;
  else if (run.kind != ChangeKind::element)
    run.after[change.index] = change.bits == kUndoneBits ? as_before(run.before, run.after, change.index) : x;
  else if (run.type == ElementType::f32)
    store_any(run.data + 4 * std::uint64_t{change.index}, change.bits);
  else
    store_any(run.data + 2 * std::uint64_t{change.index}, static_cast<std::uint16_t>(change.bits));
}

__global__ void apply_momentum_kernel(const __grid_constant__ MomentumJob job) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= job.count) return;
  const float x = one_nan(with_momentum(job.momentum, buffered(job.data, job.type, i), job.before, job.after, i));
  if (job.type == ElementType::f32)
    store_any(job.data + 4 * i, tightwire::detail::to_bits(x));
  else
    store_any(job.data + 2 * i, static_cast<std::uint16_t>(narrowed(job.type, x)));
}

Subject of(int rank) { return {"the largest elements", rank}; }

}  // namespace

void load_choice_kernels(int rank) {
  load(count_chosen_kernel, of(rank));
  load(pick_chosen_kernel, of(rank));
  load(sample_chosen_kernel, of(rank));
  load(found_chosen_kernel, of(rank));
  load(settle_chosen_kernel, of(rank));
  load(tile_chosen_kernel, of(rank));
  load(sum_chosen_kernel, of(rank));
  load(take_chosen_kernel, of(rank));
  load(change_chosen_kernel, of(rank));
  load(apply_momentum_kernel, of(rank));
}
namespace {

/// So many blocks.
LaunchSize blocks(std::uint64_t count) { return {count, kChoiceThreads}; }
/// A thread for each of so many.
LaunchSize threads(std::uint64_t count) { return blocks((count + kChoiceThreads - 1) / kChoiceThreads); }

void find_digit(const ChoiceTable& table, int pass, int rank, Stream stream) {
  const Pass job{table, choice_shift(pass), pass == 0};
  launch("counting digits", count_chosen_kernel, job, blocks(pass == 0 ? table.all_chunks : table.chunks), of(rank),
         stream);
  launch("picking a digit", pick_chosen_kernel, job, blocks(table.group_count), of(rank), stream);
}

}  // namespace

void choose_largest(const ChoiceTable& table, const ChoiceTable& samples, int rank, Stream stream) {
  find_digit(table, 0, rank, stream);
  if (samples.group_count != 0) {
    launch("sampling", sample_chosen_kernel, table, blocks(table.source_count), of(rank), stream);
    for (int pass = 0; pass < kChoicePasses; ++pass) find_digit(samples, pass, rank, stream);
    launch("counting what is found", found_chosen_kernel, table, blocks(table.chunks), of(rank), stream);
    launch("settling it", settle_chosen_kernel, table, blocks(table.group_count), of(rank), stream);
  }
  for (int pass = 1; pass < kChoicePasses; ++pass) find_digit(table, pass, rank, stream);
  launch("counting tiles", tile_chosen_kernel, table, blocks(table.tiles), of(rank), stream);
  launch("adding up tiles", sum_chosen_kernel, table, blocks(table.group_count), of(rank), stream);
  launch("taking them", take_chosen_kernel, table, blocks(table.tiles), of(rank), stream);
}
void change_elements(const ChangeJob& job, int rank, Stream stream) {
  launch("changing elements", change_chosen_kernel, job, threads(job.end - job.begin), of(rank), stream);
}

void apply_momentum(const MomentumJob& job, int rank, Stream stream) {
  launch("momentum", apply_momentum_kernel, job, threads(job.count), of(rank), stream);
}

}  // namespace tightwire::cuda::detail
