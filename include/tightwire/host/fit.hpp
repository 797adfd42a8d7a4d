#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/layout.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

/// See FitJob. Sums are of whole numbers, so that they are the same in any order.
template <BlockCodec C>
struct Fit {
  using Job = FitJob;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    const auto* stats = static_cast<const typename C::Stat*>(job.stats);
    auto* scales = static_cast<typename C::Scale*>(job.scales);
    for (std::size_t begin = 0, p = 0; begin < job.elements; begin += job.part, ++p) {
      const std::size_t elements = std::min(job.part, job.elements - begin);
      const std::size_t units = (elements + kUnit - 1) / kUnit * kUnit;
      Sums<W> sums;
      for_units<W>(begin, begin + units, [&]<int N>(std::size_t i) TIGHTWIRE_LAMBDA_INLINE {
        Lanes<float, W> x[N];
        load<W>(job.x + i, x);
        if (job.added != nullptr) add<W>(job.added + i, x);
        TIGHTWIRE_UNROLL(4)
        for (int k = 0; k < N; ++k) sums.add(x[k], scales[p], stats[p].inverse_unit());
      });
      std::uint32_t products = 0, squares = 0;
      for (int lane = 0; lane < W; ++lane) {
        products += static_cast<std::uint32_t>(sums.products.v[lane]);
        squares += static_cast<std::uint32_t>(sums.squares.v[lane]);
      }
      // What is past the end repeats the last element.
      const std::size_t last = begin + elements - 1;
      const float x = job.added != nullptr ? job.x[last] + job.added[last] : job.x[last];
      const auto extra = static_cast<std::uint32_t>(units - elements);
      const auto level = static_cast<std::uint32_t>(A::level(A::code(x, scales[p])));
      products -= extra * level * static_cast<std::uint32_t>(C::Stat::moment(x, stats[p].inverse_unit()));
      squares -= extra * level * level;
      const typename C::Param param = C::fit(stats[p], products, squares);
      if (job.params != nullptr) std::memcpy(job.params + p * kParamBytes<C>, &param, kParamBytes<C>);
      scales[p].step = C::scale(param).step;
    }
  }

 private:
  using A = ArithmeticOf<C>;
  template <int W>
  struct Sums {
    Lanes<int, W> products = Lanes<int, W>(0), squares = Lanes<int, W>(0);
    TIGHTWIRE_INLINE void add(const Lanes<float, W>& x, const typename C::Scale& scale, float inverse_unit) {
      const Lanes<int, W> level = A::level(A::code(x, scale));
      products = products + level * C::Stat::moment(x, inverse_unit);
      squares = squares + level * level;
    }
  };
};

}  // namespace tightwire::host
