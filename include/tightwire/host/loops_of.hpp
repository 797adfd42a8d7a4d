#pragma once
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

/// Statistics of parts -> Params and scales.
template <BlockCodec C>
struct ScalesFromStatistics {
  using Job = ScalesJob;
  template <int>
  TIGHTWIRE_INLINE static bool run(const Job& job) {
    const auto* stats = static_cast<const typename C::Stat*>(job.stats);
    bool finite = true;
    for (std::size_t p = 0; p < job.parts; ++p) finite &= stats[in_register(p)].finite();
    find(job, [&](const typename C::Stat& stat) TIGHTWIRE_LAMBDA_INLINE {
      if constexpr (requires { C::unbiased_param(stat); })
        return job.unbiased ? C::unbiased_param(stat) : C::param(stat);
      else
        return C::param(stat);
    });
    return finite;
  }

 private:
  template <class ParamOf>
  TIGHTWIRE_INLINE static void find(const Job& job, const ParamOf& param_of) {
    const auto* stats = static_cast<const typename C::Stat*>(job.stats);
    auto* scales = static_cast<typename C::Scale*>(job.scales);
    for (std::size_t p = 0; p < job.parts; ++p) {
      // One by one: statistics were written so just before, see `in_register`.
      p = in_register(p);
      const typename C::Param param = param_of(stats[p]);
      if (job.params != nullptr) std::memcpy(job.params + p * kParamBytes<C>, &param, kParamBytes<C>);
      scales[p] = C::scale(param);
    }
  }
};
template <BlockCodec C>
struct ScalesFromParams {
  using Job = ScalesOfJob;
  template <int>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    auto* scales = static_cast<typename C::Scale*>(job.scales);
    for (std::size_t p = 0; p < job.parts; ++p) {
      p = in_register(p);
      typename C::Param param{};
      std::memcpy(&param, job.params + p * kParamBytes<C>, kParamBytes<C>);
      scales[p] = C::scale(param);
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
  if constexpr (requires { C::Stat::moment(1.0f, 1.0f); })
    loops.moments = at<SecondStatistics<typename C::Stat>>(level);
  if constexpr (requires(typename C::Stat stat) { C::fit(stat, 0u, 0u); }) loops.fit = at<Fit<C>>(level);
  if constexpr (C::bits < 8) {
    loops.pack = at<PackBits<C::bits>>(level);
    loops.unpack = at<UnpackBits<C::bits>>(level);
  }
  return loops;
}

}  // namespace tightwire::host
