#pragma once
#include <cstddef>

#include <tightwire/element.hpp>
#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/elements.hpp>

namespace tightwire::host {

/// data [+ added] -> x in fp32, and the statistic of every block.
template <class Stat, ElementType Type>
struct Gather {
  struct Job {
    const std::byte* data;
    const float* added;  ///< null: nothing
    float* x;
    Stat* stats;
    std::size_t blocks;
    std::size_t block;  ///< a multiple of 64
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;  // a copy that no store can alias, so that its members stay in registers
    for (std::size_t b = 0; b < job.blocks; ++b) {
      Statistic<Stat, W> statistic;
      for (std::size_t i = b * job.block; i < (b + 1) * job.block; i += 4 * W) {
        Lanes<float, W> x[4];
        load<Type, W>(job.data, i, x);
        if (job.added != nullptr) add<W>(job.added + i, x);
        store<W>(x, job.x + i);
        statistic.add(x);
      }
      job.stats[b] = statistic.result();
    }
  }
};

}  // namespace tightwire::host
