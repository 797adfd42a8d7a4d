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

/// See MomentsJob.
template <class Stat>
struct SecondStatistics {
  using Job = MomentsJob;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = in_registers(given);
    auto* stats = static_cast<Stat*>(job.stats);
    for (std::size_t begin = 0; begin < job.elements; begin += job.part, ++stats) {
      const std::size_t elements = std::min(job.part, job.elements - begin);
      const std::size_t units = (elements + kUnit - 1) / kUnit * kUnit;
      const float inverse_unit = stats->inverse_unit();
      Lanes<int, W> sum(0), squares(0);
      for_units<W>(begin, begin + units, [&]<int N>(std::size_t i) TIGHTWIRE_LAMBDA_INLINE {
        Lanes<float, W> x[N];
        load<W>(job.x + i, x);
        if (job.added != nullptr) add<W>(job.added + i, x);
        TIGHTWIRE_UNROLL(4)
        for (int k = 0; k < N; ++k) {
          const Lanes<int, W> moment = Stat::moment(x[k], inverse_unit);
          sum = sum + moment;
          squares = squares + moment * moment;
        }
      });
      std::uint32_t all = 0, all_squares = 0;
      for (int lane = 0; lane < W; ++lane) {
        all += static_cast<std::uint32_t>(sum.v[lane]);
        all_squares += static_cast<std::uint32_t>(squares.v[lane]);
      }
      // What is past the end repeats the last element.
      const std::size_t last = begin + elements - 1;
      const float x = job.added != nullptr ? job.x[last] + job.added[last] : job.x[last];
      const auto moment = static_cast<std::uint32_t>(Stat::moment(x, inverse_unit));
      const auto extra = static_cast<std::uint32_t>(units - elements);
      stats->add_moments(static_cast<std::uint32_t>(elements), all - extra * moment,
                         all_squares - extra * moment * moment);
    }
  }
};

/// The largest magnitude in x + added, as bits. `added` may be null.
inline int largest_bits(Level level, const float* x, std::size_t count, const float* added = nullptr) {
  AbsMax largest;
  run<Statistics<AbsMax>>(level, {x, added, count, count, &largest});
  return largest.bits;
}

}  // namespace tightwire::host
