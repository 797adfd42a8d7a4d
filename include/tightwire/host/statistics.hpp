#pragma once
#include <algorithm>
#include <cstddef>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

/// See StatisticsJob.
template <class Stat>
struct Statistics {
  using Job = StatisticsJob;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = in_registers(given);
    auto* stats = static_cast<Stat*>(job.stats);
    for (std::size_t begin = 0; begin < job.count; begin += job.part) {
      Statistic<Stat, W> statistic;
      for_units<W>(begin, std::min(begin + job.part, job.count), [&]<int N>(std::size_t i) TIGHTWIRE_LAMBDA_INLINE {
        Lanes<float, W> x[N];
        load<W>(job.x + i, x);
        if (job.added != nullptr) add<W>(job.added + i, x);
        statistic.add(x);
      });
      *stats++ = statistic.result();
    }
  }
};

/// The largest magnitude, as bits.
inline int largest_bits(Level level, const float* x, std::size_t count) {
  AbsMax largest;
  run<Statistics<AbsMax>>(level, {x, nullptr, count, count, &largest});
  return largest.bits;
}

}  // namespace tightwire::host
