#pragma once
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/packing.hpp>
#include <tightwire/host/prefetch.hpp>

namespace tightwire::host {

/// x := or += the contributions in the order of their ranks; then, if no more will come, divided, with the residual of
/// the sum, and the statistic of every block. A sum stays in registers from the first contribution to the last.
template <BlockCodec C>
struct Accumulate {
  /// Our own contribution.
  struct Own {
    const float* x;
    const typename C::Scale* scales;
    const bool* decoded;  ///< per block: x already holds decoded values
    float* difference;    ///< what they miss of x; null: not wanted
  };
  struct Job {
    std::span<const std::byte* const> sources;  ///< null: our own
    std::size_t params_at;                      ///< of the first block, in every source
    std::size_t codes_at;
    Own own;
    float* x;
    std::size_t blocks;
    std::size_t block;  ///< a multiple of 64
    bool first;         ///< x holds nothing yet
    bool last;          ///< nothing comes after these sources
    float divisor;
    const float* added;  ///< null: nothing
    typename C::Stat* stats;
    Soon soon;
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;
    const Divisor<W> divisor(job.divisor);
    Soon soon = job.soon;
    for (std::size_t b = 0; b < job.blocks; ++b) {
      Statistic<typename C::Stat, W> statistic;
      for (std::size_t i = b * job.block; i < (b + 1) * job.block; i += 4 * W) {
        soon.template ask<4 * W>();
        Lanes<float, W> sum[4];
        std::size_t k = 0;
        if (job.first)
          contribution<W>(job, k++, b, i, sum);
        else
          load<W>(job.x + i, sum);
        for (; k < job.sources.size(); ++k) {
          Lanes<float, W> next[4];
          contribution<W>(job, k, b, i, next);
          TIGHTWIRE_UNROLL(4)
          for (int j = 0; j < 4; ++j) sum[j] = sum[j] + next[j];
        }
        if (job.last) {
          divisor.apply(sum);
          if (job.added != nullptr) add<W>(job.added + i, sum);
          statistic.add(sum);
        }
        store<W>(sum, job.x + i);
      }
      if (job.last) job.stats[b] = statistic.result();
    }
  }

 private:
  using Scale = typename C::Scale;

  template <int W>
  class Divisor {
   public:
    TIGHTWIRE_INLINE explicit Divisor(float divisor)
        : divisor_(divisor),
          one_(divisor == 1.0f),
          power_of_two_(std::has_single_bit(static_cast<unsigned>(divisor))),
          zero_(0) {
      asm("" : "+r"(zero_));
    }
    TIGHTWIRE_INLINE void apply(Lanes<float, W> (&x)[4]) const {
      if (one_) return;
      if (!power_of_two_) {
        TIGHTWIRE_UNROLL(4)
        for (int j = 0; j < 4; ++j) x[j] = x[j] / Lanes<float, W>(divisor_);
        return;
      }
      // The compiler does not know that an exclusive or with zero changes nothing, so it cannot contract the product
      // with the addition that follows, which would round a subnormal once instead of twice.
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < 4; ++j)
        x[j] = from_bits(to_bits(x[j] * Lanes<float, W>(1.0f / divisor_)) ^ Lanes<std::uint32_t, W>(zero_));
    }

   private:
    float divisor_;
    bool one_;
    bool power_of_two_;
    std::uint32_t zero_;
  };

  template <int W>
  TIGHTWIRE_INLINE static void contribution(const Job& job, std::size_t k, std::size_t b, std::size_t i,
                                            Lanes<float, W> (&value)[4]) {
    const std::byte* source = job.sources[k];
    if (source == nullptr) {
      own_contribution<W>(job, b, i, value);
      return;
    }
    typename C::Param param{};
    std::memcpy(&param, source + job.params_at + b * kParamBytes<C>, kParamBytes<C>);
    const Scale scale = C::scale(param);
    Lanes<int, W> codes[4];
    unpack<C::bits, W>(source + job.codes_at + i * C::bits / 8, codes);
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) value[j] = Arithmetic<C, W>::value(codes[j], scale);
  }

  template <int W>
  TIGHTWIRE_INLINE static void own_contribution(const Job& job, std::size_t b, std::size_t i,
                                                Lanes<float, W> (&value)[4]) {
    if (job.own.decoded[b]) {
      load<W>(job.own.x + i, value);
      return;
    }
    Lanes<float, W> x[4];
    load<W>(job.own.x + i, x);
    const Scale scale = job.own.scales[b];
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) value[j] = Arithmetic<C, W>::value(Arithmetic<C, W>::code(x[j], scale), scale);
    if (job.own.difference != nullptr) store_difference<W>(x, value, job.own.difference + i);
  }
};

}  // namespace tightwire::host
