#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/codec/concept.hpp>
#include <tightwire/cuda/access.cuh>
#include <tightwire/cuda/reduce.cuh>
#include <tightwire/cuda/workspace.cuh>

namespace tightwire::cuda::detail {

template <class Stat>
__device__ void add_element(Stat& stat, float x) {
  stat.add(Stat::key(x));
  if constexpr (requires { Stat::second_key(1.0f); }) stat.add_second(Stat::second_key(x));
}

/// `step(x)` for the elements of a granule.
template <class Step>
__device__ void for_elements(const float* x, unsigned granule, unsigned count, const Step& step) {
  const unsigned begin = granule * kGranule;
  const unsigned end = begin + kGranule < count ? begin + kGranule : count;
#pragma unroll 2
  for (unsigned i = begin; i < end; ++i) step(x[i]);
}

/// The statistics of all parts, and which have elements that are not finite. The latter must be 0 before.
template <BlockCodec C>
__device__ void find_statistics(const Workspace<C>& work, const Shape& shape, unsigned count) {
  using Stat = typename C::Stat;
  if constexpr (requires(Stat stat) { stat.join(stat); }) {
    for_parts<Stat>(
        count, shape.part, work.groups,
        [&](unsigned granule) {
          Stat stat{};
          bool finite = true;
          for_elements(work.x, granule, count, [&](float x) {
            add_element(stat, x);
            finite = finite && is_finite(x);
          });
          if (!finite) atomicOr(&work.nonfinite_input[granule * kGranule / shape.part], 1u);
          return stat;
        },
        [&](unsigned p, const Stat& stat) { work.stats[p] = stat; });
  } else {  // one thread for a part, since partial statistics cannot be put together
    for (unsigned p = threadIdx.x; p * shape.part < count; p += kThreads) {
      Stat stat{};
      for (unsigned i = p * shape.part; i < count && i < (p + 1) * shape.part; ++i) {
        add_element(stat, work.x[i]);
        if (!is_finite(work.x[i])) work.nonfinite_input[p] = 1;
      }
      work.stats[p] = stat;
    }
    __syncthreads();
  }
  if constexpr (requires { Stat::moment(1.0f, 1.0f); })
    for_parts<Sums>(
        count, shape.part, work.groups,
        [&](unsigned granule) {
          const float inverse_unit = work.stats[granule * kGranule / shape.part].inverse_unit();
          Sums sums;
          for_elements(work.x, granule, count, [&](float x) {
            const auto moment = static_cast<std::uint32_t>(Stat::moment(x, inverse_unit));
            sums.join({moment, moment * moment});
          });
          return sums;
        },
        [&](unsigned p, const Sums& sums) {
          const unsigned left = count - p * shape.part;
          work.stats[p].add_moments(left < shape.part ? left : shape.part, sums.first, sums.second);
        });
}

/// What the parts of each block share, of the statistics of those that are finite: a warp to a block.
template <BlockCodec C>
__device__ void find_shared(const Workspace<C>& work, const Shape& shape, unsigned parts) {
  using Stat = typename C::Stat;
  constexpr unsigned kWarp = 32;
  const unsigned blocks = (parts + shape.parts_per_block - 1) / shape.parts_per_block;
#pragma unroll 1
  for (unsigned b = threadIdx.x / kWarp; b < blocks; b += kThreads / kWarp) {
    const unsigned begin = b * shape.parts_per_block;
    const unsigned end = begin + shape.parts_per_block < parts ? begin + shape.parts_per_block : parts;
    Stat all{};
#pragma unroll 1
    for (unsigned p = begin + threadIdx.x % kWarp; p < end; p += kWarp)
      if (work.stats[p].finite()) all.join(work.stats[p]);
#pragma unroll 1
    for (unsigned distance = 1; distance < kWarp; distance *= 2) all.join(from_lane(all, distance));
    if (threadIdx.x % kWarp != 0) continue;
    work.shared[b] = shared_of<C>(all);
    memcpy(work.params + b * (host::kSharedBytes<C> + shape.parts_per_block * host::kParamBytes<C>), &work.shared[b],
           host::kSharedBytes<C>);
  }
  __syncthreads();
}

/// Where the Param of a part lies among those of a tile.
template <BlockCodec C>
__device__ std::size_t param_at(const Shape& shape, unsigned part) {
  if constexpr (tightwire::detail::BlocksInParts<C>)
    return (part / shape.parts_per_block + 1) * host::kSharedBytes<C> + part * host::kParamBytes<C>;
  else
    return part * host::kParamBytes<C>;
}
template <BlockCodec C>
__device__ void put_param(const Workspace<C>& work, const Shape& shape, unsigned part, const typename C::Param& param) {
  memcpy(work.params + param_at<C>(shape, part), &param, host::kParamBytes<C>);
}

/// Steps that fit the codes best, under scales by which codes are chosen.
template <BlockCodec C>
__device__ void fit_steps(const Workspace<C>& work, const Shape& shape, unsigned count) {
  using A = ArithmeticOf<C>;
  for_parts<Sums>(
      count, shape.part, work.groups,
      [&](unsigned granule) {
        const unsigned p = granule * kGranule / shape.part;
        const typename C::Scale scale = work.scales[p];
        const float inverse_unit = work.stats[p].inverse_unit();
        Sums sums;
        for_elements(work.x, granule, count, [&](float x) {
          const auto level = static_cast<std::uint32_t>(A::level(A::code(x, scale)));
          sums.join({level * static_cast<std::uint32_t>(C::Stat::moment(x, inverse_unit)), level * level});
        });
        return sums;
      },
      [&](unsigned p, const Sums& sums) {
        const typename C::Param param = C::fit(work.stats[p], sums.first, sums.second);
        put_param(work, shape, p, param);
        work.scales[p].step = C::scale(param).step;
      });
}

/// Statistics, Params and scales of a tile whose elements are in shared memory, which all threads see before and after.
template <BlockCodec C>
__device__ void find_scales(const Workspace<C>& work, const Shape& shape, unsigned count, bool unbiased) {
  const unsigned parts = (count + shape.part - 1) / shape.part;
  find_statistics(work, shape, count);
  if constexpr (tightwire::detail::BlocksInParts<C>) find_shared(work, shape, parts);
#pragma unroll 1
  for (unsigned p = threadIdx.x; p < parts; p += kThreads) {
    SharedOf<C> shared{};
    if constexpr (tightwire::detail::BlocksInParts<C>) shared = work.shared[p / shape.parts_per_block];
    const typename C::Param param = param_of<C>(work.stats[p], shared, unbiased);
    put_param(work, shape, p, param);
    work.scales[p] = scale_of<C>(param, shared);
    if (!work.stats[p].finite()) work.counters[kPartsNotFinite] = 1;
  }
  __syncthreads();
  if constexpr (requires(typename C::Stat stat) { C::fit(stat, 0u, 0u); }) fit_steps(work, shape, count);
}

}  // namespace tightwire::cuda::detail
