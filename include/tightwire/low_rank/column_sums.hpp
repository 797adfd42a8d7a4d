#pragma once
#include <cmath>
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
/// As in Lanes, for which a double is too wide.
template <int W>
TIGHTWIRE_INLINE Doubles<W> same_everywhere(double value) {
  typedef long long Bits __attribute__((vector_size(sizeof(double) * (W / 2))));
  Bits bits{};
  bits |= __builtin_bit_cast(long long, value);
  return Doubles<W>::of((typename Doubles<W>::Vector)bits);
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
    if (i < job.count) [[unlikely]]
      add_rest({job.a + i, job.b + i, job.count - i}, partial);
    double all = 0;
    for (const double one : partial) all += one;
    return all;
  }

 private:
  /// Apart, so that g++ leaves the sums in memory, from where they are added, instead of keeping all in registers.
  [[gnu::noinline]] static void add_rest(const Job& job, double* partial) {
    for (std::size_t s = 0; s < job.count; ++s) {
      volatile double product = job.a[s] * static_cast<double>(job.b[s]);
      partial[s] += product;
    }
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
    const Doubles<W> factor = same_everywhere<W>(job.factor);
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

/// Column `column` of several factors of one shape against the orthonormal ones before it, each factor by itself: taken
/// off twice, and what is left scaled to norm 1. The bits of a factor do not depend on those beside it. Sums of one
/// column are formed one after the other, and those of several factors at the same time.
struct GramSchmidtColumn {
  static constexpr std::size_t kMostFactors = 32;
  struct Job {
    float* const* factors;  ///< each rows x rank
    std::size_t count;      ///< of factors: kMostFactors at most
    std::size_t rows, column;
    double least_square;  ///< that is to be left, as part of what there was
    double* work;         ///< count x rows
    bool* independent;    ///< false: next to nothing is left of the column, or it is not finite; it stays as it was
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    const std::size_t rows = job.rows, at = job.column * rows;
    double before[kMostFactors], along[kMostFactors];
    // A product of two floats has no overflow and no underflow in double: nothing need be scaled.
    for (std::size_t f = 0; f < job.count; ++f) widen<W>(job.factors[f] + at, rows, job.work + f * rows);
    for (std::size_t f = 0; f < job.count; ++f)
      before[f] = DotProduct<float>::run<W>({job.work + f * rows, job.factors[f] + at, rows});
    for (int round = 0; round < 2; ++round)
      for (std::size_t j = 0; j < job.column; ++j) {
        for (std::size_t f = 0; f < job.count; ++f)
          along[f] = DotProduct<float>::run<W>({job.work + f * rows, job.factors[f] + j * rows, rows});
        for (std::size_t f = 0; f < job.count; ++f)
          SubtractMultiple::run<W>({job.work + f * rows, job.factors[f] + j * rows, along[f], rows});
      }
    for (std::size_t f = 0; f < job.count; ++f) {
      const double* const work = job.work + f * rows;
      const double after = job.column == 0 ? before[f] : DotProduct<double>::run<W>({work, work, rows});
      job.independent[f] = before[f] > 0 && std::isfinite(before[f]) && after >= job.least_square * before[f];
      if (job.independent[f]) RoundMultiple::run<W>({work, 1 / std::sqrt(after), job.factors[f] + at, rows});
    }
  }

 private:
  template <int W>
  TIGHTWIRE_INLINE static void widen(const float* from, std::size_t count, double* to) {
    constexpr std::size_t kLanes = W / 2;
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) load_doubles<W>(from + i).store(to + i);
    for (; i < count; ++i) to[i] = static_cast<double>(from[i]);
  }
};

}  // namespace tightwire::low_rank
