#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <tightwire/host/accumulate.hpp>
#include <tightwire/host/code_bits.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/fit.hpp>
#include <tightwire/host/layout.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/host/quantize.hpp>
#include <tightwire/host/statistics.hpp>

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

/// The loops of a codec for an instruction set. Those of its arithmetic are shared by all codecs that have the same.
template <BlockCodec C>
Loops loops_of(Level level) {
  using A = ArithmeticOf<C>;
  static_assert(sizeof(typename C::Stat) <= kMostStatBytes && sizeof(typename C::Scale) <= kMostScaleBytes,
                "the statistics and scales of a tile must fit the innermost cache: at most 32 bytes each per block");
  constexpr int kBytes = static_cast<int>(kCodeBytes<C>);
  Loops loops{.statistics = at<Statistics<typename C::Stat>>(level),
              .moments = nullptr,
              .scales = at<ScalesFromStatistics<C>>(level),
              .fit = nullptr,
              .finite = [](const void* stats,
                           std::size_t part) { return static_cast<const typename C::Stat*>(stats)[part].finite(); },
              .scales_of = at<ScalesFromParams<C>>(level),
              .quantize = at<Quantize<A, kBytes>>(level),
              .quantize_nonfinite = &quantize_nonfinite<C>,
              .dequantize = at<Dequantize<A, kBytes>>(level),
              .accumulate = at<Accumulate<A, kBytes>>(level),
              .pack = nullptr,
              .unpack = nullptr,
              .stat_bytes = sizeof(typename C::Stat),
              .scale_bytes = sizeof(typename C::Scale)};
  static_assert(
      !detail::BlocksInParts<C> || !requires { C::Stat::moment(1.0f, 1.0f); },
      "parts of a block have statistics of one pass");
  if constexpr (requires { C::Stat::moment(1.0f, 1.0f); })
    loops.moments = at<SecondStatistics<typename C::Stat>>(level);
  if constexpr (requires(typename C::Stat stat) { C::fit(stat, 0u, 0u); }) loops.fit = at<Fit<C>>(level);
  if constexpr (packs_trits<C>) {
    loops.pack = at<PackTrits>(level);
    loops.unpack = at<UnpackTrits>(level);
  } else if constexpr (C::bits < 8) {
    loops.pack = at<PackBits<C::bits>>(level);
    loops.unpack = at<UnpackBits<C::bits>>(level);
  }
  return loops;
}

}  // namespace tightwire::host
