#pragma once
#include <cstddef>
#include <cstring>

#include <tightwire/detail/lanes.hpp>
#include <tightwire/host/dispatch.hpp>

namespace tightwire::low_rank {

/// As many doubles as fill the register of W floats.
template <int W>
using Doubles = tightwire::detail::Lanes<double, W / 2>;

template <int W>
TIGHTWIRE_INLINE Doubles<W> load_doubles(const double* from) {
  return Doubles<W>::load(from);
}
template <int W>
TIGHTWIRE_INLINE Doubles<W> load_doubles(const float* from) {
  const auto x = tightwire::detail::Lanes<float, W / 2>::load(from);
  return Doubles<W>::of(__builtin_convertvector(x.v, typename Doubles<W>::Vector));
}
/// Rounded before anything is added to it.
template <int W>
TIGHTWIRE_INLINE Doubles<W> rounded_product(const Doubles<W>& a, const Doubles<W>& b) {
  using Floats = tightwire::detail::Lanes<float, W>;
  const Doubles<W> product = a * b;
  Floats bits = Floats::of((typename Floats::Vector)product.v);
  tightwire::detail::settle(bits);
  return Doubles<W>::of((typename Doubles<W>::Vector)bits.v);
}

/// a . b in double. Of 16 partial sums, number s has elements s, s + 16, s + 32 ... from first to last; what is left
/// over behind the last 16 goes into the first ones. They are added from first to last.
template <class B>
struct DotProduct {
  struct Job {
    const double* a;
    const B* b;
    std::size_t count;
  };
  template <int W>
  TIGHTWIRE_INLINE static double run(const Job& job) {
    constexpr int kLanes = W / 2, kRegisters = 16 / kLanes;
    Doubles<W> sum[kRegisters];
    std::memset(&sum, 0, sizeof sum);
    std::size_t i = 0;
    for (; i + 16 <= job.count; i += 16) TIGHTWIRE_UNROLL(8)
    for (int r = 0; r < kRegisters; ++r) {
      const std::size_t at = i + static_cast<std::size_t>(r * kLanes);
      sum[r] = sum[r] + rounded_product<W>(load_doubles<W>(job.a + at), load_doubles<W>(job.b + at));
    }
    double partial[16];
    TIGHTWIRE_UNROLL(8)
    for (int r = 0; r < kRegisters; ++r) sum[r].store(partial + r * kLanes);
    for (std::size_t s = 0; i + s < job.count; ++s) {
      volatile double product = job.a[i + s] * static_cast<double>(job.b[i + s]);
      partial[s] += product;
    }
    double all = 0;
    for (const double one : partial) all += one;
    return all;
  }
};

/// a := a - factor * b.
struct SubtractMultiple {
  struct Job {
    double* a;
    const float* b;
    double factor;
    std::size_t count;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    constexpr std::size_t kLanes = W / 2;
    Doubles<W> factor;
    for (std::size_t lane = 0; lane < kLanes; ++lane) factor.v[lane] = job.factor;
    std::size_t i = 0;
    for (; i + kLanes <= job.count; i += kLanes)
      (load_doubles<W>(job.a + i) - rounded_product<W>(factor, load_doubles<W>(job.b + i))).store(job.a + i);
    for (; i < job.count; ++i) {
      volatile double product = job.factor * static_cast<double>(job.b[i]);
      job.a[i] -= product;
    }
  }
};

/// out := factor * a, rounded to fp32.
struct RoundMultiple {
  struct Job {
    const double* a;
    double factor;
    float* out;
    std::size_t count;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    for (std::size_t i = 0; i < job.count; ++i) job.out[i] = static_cast<float>(job.factor * job.a[i]);
  }
};

}  // namespace tightwire::low_rank
