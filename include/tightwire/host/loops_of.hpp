#pragma once
#include <cstddef>

#include <tightwire/host/accumulate.hpp>
#include <tightwire/host/code_bits.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/encode_tiles.hpp>
#include <tightwire/host/fit.hpp>
#include <tightwire/host/layout.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/host/quantize.hpp>
#include <tightwire/host/scales.hpp>
#include <tightwire/host/statistics.hpp>

namespace tightwire::host {

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
              .encode_tiles = nullptr,
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
  // Not of the plainest instruction set, whose loops are slower than any memory.
  if constexpr (EncodesInOneLoop<C>) {
    if (level == Level::avx512) loops.encode_tiles = &run_avx512<EncodeTiles<C>>;
    if (level == Level::avx2) loops.encode_tiles = &run_avx2<EncodeTiles<C>>;
  }
  if constexpr (base_of<C> != 0) {
    loops.pack = at<PackDigits<base_of<C>>>(level);
    loops.unpack = at<UnpackDigits<base_of<C>>>(level);
  } else if constexpr (C::bits < 8) {
    loops.pack = at<PackBits<C::bits>>(level);
    loops.unpack = at<UnpackBits<C::bits>>(level);
  }
  return loops;
}

}  // namespace tightwire::host
