#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include <tightwire/host/code_bits.hpp>
#include <tightwire/host/layout.hpp>
#include <tightwire/host/quantize.hpp>
#include <tightwire/host/residual.hpp>
#include <tightwire/host/scales.hpp>
#include <tightwire/host/statistics.hpp>

namespace tightwire::host {

/// Codecs whose Scales follow from one pass over the elements, and whose codes are of up to 8 bits each.
template <class C>
concept EncodesInOneLoop =
    BlockCodec<C> && C::bits <= 8 && base_of<C> == 0 && !std::is_empty_v<typename C::Scale> && !requires {
  C::Stat::moment(1.0f, 1.0f);
}
&&!requires(typename C::Stat stat) { C::fit(stat, 0u, 0u); };

/// The statistics of x, or of x + added, which is kept: parts in whole, from the buffers of a tile.
template <class Stat>
struct SumWithStatistics {
  struct Job {
    const float* x;
    const float* added;  ///< null: of x
    std::size_t count;
    std::size_t part;
    float* sums;
    Stat* stats;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    job.added != nullptr ? of<W, true>(job) : of<W, false>(job);
  }

 private:
  template <int W, bool Added>
  TIGHTWIRE_INLINE static void of(const Job& job) {
    const float* const x = job.x;
    const float* const added = job.added;
    float* const sums = job.sums;
    const std::size_t count = job.count, part = job.part;
    Stat* stats = job.stats;
    for (std::size_t begin = 0; begin < count; begin += part) {
      Statistic<Stat, W> statistic;
      for_units<W>(begin, begin + part, [&]<int N>(std::size_t i) TIGHTWIRE_LAMBDA_INLINE {
        prefetch_ahead<N * W>(x + i);
        if constexpr (Added) prefetch_ahead<N * W>(added + i);
        Lanes<float, W> sum[N];
        load<W>(x + i, sum);
        if constexpr (Added) {
          add<W>(added + i, sum);
          store<W>(sum, sums + i);
        }
        statistic.add(sum);
      });
      *stats++ = statistic.result();
    }
  }
};

/// Quantize, of elements that are known to need no clamp and are rounded to nearest.
template <class A>
struct QuantizeWithin {
  using Job = QuantizeJob;
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    Quantize<A, 1>::template all<W, true>(in_registers(job));
  }
};

/// See TilesJob. Its loops are functions of their own, which codecs share that have the same statistics, arithmetic or
/// bits: inlined for each codec they took longer to compile than all other loops together.
template <BlockCodec C>
class EncodeTiles {
 public:
  using Job = TilesJob;

  template <int W>
  TIGHTWIRE_INLINE static std::size_t run(const Job& job) {
    // Two tiles at a time: what is known of one comes late, and would be waited for.
    Memory memory[2];
    for (std::size_t at = 0, t = 0;; at += job.tile, ++t) {
      if (at < job.count) look<W>(job, at, memory[t % 2]);
      if (at == 0) continue;
      Memory& before = memory[(t - 1) % 2];
      if (!before.finite) [[unlikely]]
        return at - job.tile;
      put<W>(job, at - job.tile, before);
      if (at == job.count) return at;
    }
  }

 private:
  using A = ArithmeticOf<C>;
  using Stat = typename C::Stat;
  using Scale = typename C::Scale;
  /// Whether the largest magnitude, which the statistic has, says that no code needs a clamp.
  template <int W>
  static constexpr bool kClampsByMagnitude = (std::is_same_v<Stat, AbsMax> ||
                                              std::is_same_v<Stat, SignedAbsMax>)&&requires(Scale scale) {
    Arithmetic<A, W>::within(1.0f, scale);
  };

  /// What passes from loop to loop. Not objects, which would be cleared for every call.
  struct Memory {
    bool finite;  ///< all elements are
    bool within;  ///< their codes need no clamp
    alignas(64) float sums[kLargestTile];
    alignas(64) float difference[kLargestTile];
    alignas(64) std::byte codes[kLargestTile];
    alignas(64) std::byte packed[kLargestTile];
    alignas(64) std::byte stats_memory[kLargestTile / kUnit * sizeof(Stat)];
    alignas(64) std::byte scales_memory[kLargestTile / kUnit * sizeof(Scale)];

    Stat* stats() { return reinterpret_cast<Stat*>(stats_memory); }
    Scale* scales() { return reinterpret_cast<Scale*>(scales_memory); }
  };

  /// A loop for the instruction set that is W wide. Codes of a byte take so little time that calls would be a tenth of
  /// it.
  template <class Kernel, int W>
  TIGHTWIRE_INLINE static void call(const typename Kernel::Job& job) {
    static_assert(W == 16 || W == 8);
    if constexpr (C::bits == 8)
      Kernel::template run<W>(job);
    else if constexpr (W == 16)
      run_avx512<Kernel>(job);
    else
      run_avx2<Kernel>(job);
  }

  template <int W>
  TIGHTWIRE_INLINE static void look(const Job& job, std::size_t at, Memory& memory) {
    const float* x = job.x + at;
    if (job.added_bf16 != nullptr) {
      call<AddResidual, W>({x, job.added_bf16 + at, job.tile, memory.sums});
      x = memory.sums;
    }
    call<SumWithStatistics<Stat>, W>({.x = x,
                                      .added = job.added != nullptr ? job.added + at : nullptr,
                                      .count = job.tile,
                                      .part = job.part,
                                      .sums = memory.sums,
                                      .stats = memory.stats()});
    scales<W>(job, at, memory, job.noise != nullptr);
  }

  /// Statistics -> Params and scales.
  template <int W>
  TIGHTWIRE_INLINE static void scales(const Job& job, std::size_t at, Memory& memory, bool unbiased) {
    const std::size_t parts = job.tile / job.part;
    std::byte* const params =
        job.params + at / job.part * kParamBytes<C> + at / job.part / job.parts_per_block * kSharedBytes<C>;
    if constexpr (detail::BlocksInParts<C>) {
      memory.finite = ScalesFromStatistics<C>::template run<W>(
          {memory.stats(), parts, job.parts_per_block, params, memory.scales(), unbiased});
    } else {
      bool finite = true, within = !unbiased;
      for (std::size_t p = 0; p < parts; ++p) {
        const Stat stat = memory.stats()[in_register(p)];
        const typename C::Param param = param_of<C>(stat, {}, unbiased);
        const Scale scale = scale_of<C>(param, {});
        std::memcpy(params + p * sizeof param, &param, sizeof param);
        memory.scales()[p] = scale;
        finite &= stat.finite();
        if constexpr (kClampsByMagnitude<W>) within &= unbiased || Arithmetic<A, W>::within(magnitude(stat), scale);
      }
      memory.finite = finite;
      memory.within = within;
    }
  }
  TIGHTWIRE_INLINE static float magnitude(const Stat& stat) {
    return detail::from_bits(detail::to_bits(stat.value()) & detail::kMagnitudeMask);
  }

  template <int W>
  TIGHTWIRE_INLINE static void put(const Job& job, std::size_t at, Memory& memory) {
    constexpr bool kWhole = C::bits == 8;
    const std::size_t bytes = job.tile * static_cast<std::size_t>(C::bits) / 8;
    std::byte* const wire = job.codes + at / 8 * static_cast<std::size_t>(C::bits);
    if (!job.codes_past_cache) {
      // Lines of codes are read before they are written, and without this not before the codes are there.
      std::byte* const ahead = wire + kAhead / 8 * static_cast<std::size_t>(C::bits);
      for (std::size_t line = 0; line < bytes; line += 64) detail::prefetch_to_write(ahead + line);
    }
    const bool summed = job.added != nullptr || job.added_bf16 != nullptr;
    const QuantizeJob quantize{.x = summed ? memory.sums : job.x + at,
                               .added = nullptr,
                               .noise = job.noise != nullptr ? job.noise + at : nullptr,
                               .count = job.tile,
                               .part = job.part,
                               .scales = memory.scales(),
                               .codes = kWhole ? wire : memory.codes,
                               .difference = job.difference != nullptr        ? job.difference + at
                                             : job.difference_bf16 != nullptr ? memory.difference
                                                                              : nullptr,
                               .values = nullptr,
                               .codes_past_cache = kWhole && job.codes_past_cache,
                               .difference_past_cache = job.difference != nullptr && job.difference_past_cache};
    if constexpr (kClampsByMagnitude<W>) {
      if (memory.within) [[likely]]
        call<QuantizeWithin<A>, W>(quantize);
      else
        call<Quantize<A, 1>, W>(quantize);
    } else {
      call<Quantize<A, 1>, W>(quantize);
    }
    if constexpr (!kWhole) pack<W>(job, bytes, wire, memory);
    if (job.difference_bf16 != nullptr)
      call<RoundResidual, W>({memory.difference, job.bits.random, job.bits.place + at, job.tile,
                              job.difference_bf16 + at, job.difference_past_cache});
  }

  template <int W>
  TIGHTWIRE_INLINE static void pack(const Job& job, std::size_t bytes, std::byte* wire, Memory& memory) {
    call<PackBits<C::bits>, W>({memory.codes, job.tile, job.codes_past_cache ? memory.packed : wire});
    if (!job.codes_past_cache) return;
    for (std::size_t i = 0; i < bytes; i += 16) detail::copy_past_cache(memory.packed + i, wire + i, 16);
  }
};

}  // namespace tightwire::host
