#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>

#include <tightwire/host/quantize.hpp>

namespace tightwire::host {

/// Divides by a whole number; by a power of two it multiplies with the inverse, which gives the same.
template <int W>
class Divisor {
 public:
  TIGHTWIRE_INLINE explicit Divisor(float divisor)
      : divisor_(divisor),
        inverse_(1.0f / divisor),
        power_of_two_(std::has_single_bit(static_cast<unsigned>(divisor))) {}
  template <int N>
  TIGHTWIRE_INLINE void apply(Lanes<float, W> (&x)[N]) const {
    if (power_of_two_) [[likely]] {
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < N; ++j) x[j] = x[j] * Lanes<float, W>(inverse_);
    } else {
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < N; ++j) x[j] = x[j] / Lanes<float, W>(divisor_);
    }
  }

 private:
  float divisor_;
  float inverse_;
  bool power_of_two_;
};

/// See AccumulateJob. The sum of a group stays in registers from the first contribution to the last.
template <class A, int Bytes>
struct Accumulate {
  using Job = AccumulateJob;
  using Scale = typename A::Scale;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = in_registers(given);
    Source sources[kMostSources];
    for (std::size_t k = 0; k < job.number; ++k) sources[k] = in_registers(job.sources[k]);
    const Divisor<W> divisor(job.divisor);
    for_parts<W>(job.count, job.part, [&]<int N>(std::size_t i, const auto& parts) TIGHTWIRE_LAMBDA_INLINE {
      Lanes<float, W> sum[N], next[N];
      std::size_t k = 0;
      if (job.first)
        contribution<W, N>(sources[k++], parts, i, sum);
      else
        load<W>(job.sum + i, sum);
      for (; k < job.number; ++k) {
        contribution<W, N>(sources[k], parts, i, next);
        TIGHTWIRE_UNROLL(4)
        for (int j = 0; j < N; ++j) sum[j] = sum[j] + next[j];
      }
      if (job.last) divisor.apply(sum);
      store<W>(sum, job.sum + i);
    });
  }

 private:
  template <int W, int N>
  TIGHTWIRE_INLINE static void contribution(const Source& source, const auto& parts, std::size_t i,
                                            Lanes<float, W> (&value)[N]) {
    if (source.values != nullptr) return load<W>(source.values + i, value);
    Lanes<int, W> codes[N];
    get_codes<Bytes, W>(source.codes + i * Bytes, codes);
    const auto* scales = static_cast<const Scale*>(source.scales);
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < N; ++j) {
      value[j] = Arithmetic<A, W>::value(codes[j], scales[parts[j]]);
      // A product that is not exact must be rounded before it is added, whatever the compiler may contract.
      if constexpr (!requires { A::exact_products; }) detail::settle(value[j]);
    }
  }
};

}  // namespace tightwire::host
