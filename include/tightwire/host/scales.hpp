#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/layout.hpp>

namespace tightwire::host {

/// Calls `step(first part, end, Shared and Params on the wire)` for every block of a tile.
template <BlockCodec C, class Byte, class Step>
TIGHTWIRE_INLINE void for_blocks(std::size_t parts, std::size_t parts_per_block, Byte* params, const Step& step) {
  if constexpr (!detail::BlocksInParts<C>) {
    step(0, parts, params);
  } else {
    for (std::size_t begin = 0; begin < parts; begin += parts_per_block) {
      step(begin, std::min(begin + parts_per_block, parts), params);
      if (params != nullptr) params += kSharedBytes<C> + parts_per_block * kParamBytes<C>;
    }
  }
}

/// Statistics of parts -> Params and scales.
template <BlockCodec C>
struct ScalesFromStatistics {
  using Job = ScalesJob;
  template <int>
  TIGHTWIRE_INLINE static bool run(const Job& job) {
    const auto* stats = static_cast<const typename C::Stat*>(job.stats);
    bool finite = true;
    for (std::size_t p = 0; p < job.parts; ++p) finite &= stats[in_register(p)].finite();
    for_blocks<C>(job.parts, job.parts_per_block, job.params,
                  [&](std::size_t begin, std::size_t end, std::byte* params)
                      TIGHTWIRE_LAMBDA_INLINE { find(job, begin, end, params); });
    return finite;
  }

 private:
  TIGHTWIRE_INLINE static void find(const Job& job, std::size_t begin, std::size_t end, std::byte* params) {
    const auto* stats = static_cast<const typename C::Stat*>(job.stats);
    auto* scales = static_cast<typename C::Scale*>(job.scales);
    const SharedOf<C> shared = shared_by(stats, begin, end);
    if (params != nullptr) std::memcpy(params, &shared, kSharedBytes<C>);
    for (std::size_t p = begin; p < end; ++p) {
      // One by one: statistics were written so just before, see `in_register`.
      p = in_register(p);
      const typename C::Param param = param_of<C>(stats[p], shared, job.unbiased);
      if (params != nullptr)
        std::memcpy(params + kSharedBytes<C> + (p - begin) * kParamBytes<C>, &param, kParamBytes<C>);
      scales[p] = scale_of<C>(param, shared);
    }
  }
  /// Of the parts that are finite.
  TIGHTWIRE_INLINE static SharedOf<C> shared_by(const typename C::Stat* stats, std::size_t begin, std::size_t end) {
    typename C::Stat all{};
    if constexpr (detail::BlocksInParts<C>)
      for (std::size_t p = begin; p < end; ++p)
        if (stats[p].finite()) all.join(stats[p]);
    return shared_of<C>(all);
  }
};
template <BlockCodec C>
struct ScalesFromParams {
  using Job = ScalesOfJob;
  template <int>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    for_blocks<C>(job.parts, job.parts_per_block, job.params,
                  [&](std::size_t begin, std::size_t end, const std::byte* params)
                      TIGHTWIRE_LAMBDA_INLINE { find(job, begin, end, params); });
  }

 private:
  TIGHTWIRE_INLINE static void find(const Job& job, std::size_t begin, std::size_t end, const std::byte* params) {
    auto* scales = static_cast<typename C::Scale*>(job.scales);
    SharedOf<C> shared{};
    std::memcpy(&shared, params, kSharedBytes<C>);
    for (std::size_t p = begin; p < end; ++p) {
      p = in_register(p);
      typename C::Param param{};
      std::memcpy(&param, params + kSharedBytes<C> + (p - begin) * kParamBytes<C>, kParamBytes<C>);
      scales[p] = scale_of<C>(param, shared);
    }
  }
};

}  // namespace tightwire::host
