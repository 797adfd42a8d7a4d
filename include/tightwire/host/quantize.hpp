#pragma once
#include <cstddef>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/packing.hpp>
#include <tightwire/host/prefetch.hpp>

namespace tightwire::host {

/// Blocks of x under known scales -> whichever is wanted of codes, decoded values, and what they miss of x.
template <BlockCodec C>
struct Quantize {
  struct Job {
    const float* x;
    const typename C::Scale* scales;
    std::byte* codes;   ///< null: not wanted
    float* difference;  ///< null: not wanted
    float* values;      ///< null: not wanted
    std::size_t blocks;
    std::size_t block;  ///< a multiple of 64
    Soon soon[2];       ///< read meanwhile
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;
    Soon soon[2] = {job.soon[0], job.soon[1]};
    for (std::size_t b = 0; b < job.blocks; ++b) {
      const typename C::Scale scale = job.scales[b];
      for (std::size_t i = b * job.block; i < (b + 1) * job.block; i += 4 * W) {
        soon[0].template ask<4 * W>();
        soon[1].template ask<4 * W>();
        Lanes<float, W> x[4], values[4];
        Lanes<int, W> codes[4];
        load<W>(job.x + i, x);
        TIGHTWIRE_UNROLL(4)
        for (int k = 0; k < 4; ++k) {
          codes[k] = Arithmetic<C, W>::code(x[k], scale);
          values[k] = Arithmetic<C, W>::value(codes[k], scale);
        }
        if (job.difference != nullptr) store_difference<W>(x, values, job.difference + i);
        if (job.values != nullptr) store<W>(values, job.values + i);
        if (job.codes != nullptr) pack<C::bits, W>(codes, job.codes + i * C::bits / 8);
      }
    }
  }
};

}  // namespace tightwire::host
