#pragma once
#include <cstddef>

#include <tightwire/codec/stat.hpp>
#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/elements.hpp>

namespace tightwire::host {

/// fp32 -> a buffer of the type.
template <ElementType Type>
struct Store {
  struct Job {
    const float* x;
    std::byte* out;
    std::size_t count;  ///< a multiple of 64
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;
    for (std::size_t i = 0; i < job.count; i += 4 * W) {
      Lanes<float, W> x[4];
      load<W>(job.x + i, x);
      store<Type, W>(x, job.out, i);
    }
  }
};

/// Decoded values -> a buffer of the type, and the difference of x to what the buffer holds.
template <ElementType Type>
struct Round {
  struct Job {
    const float* x;
    const float* values;
    std::byte* out;
    float* difference;  ///< null: not wanted
    std::size_t count;  ///< a multiple of 64
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;
    for (std::size_t i = 0; i < job.count; i += 4 * W) {
      Lanes<float, W> x[4], value[4];
      Lanes<int, W> h[4];
      load<W>(job.values + i, value);
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        h[j] = to_16_bits<Type>(value[j]);
        value[j] = from_16_bits<Type>(h[j]);
      }
      detail::narrow_to_16(h, job.out + i * element_bytes(Type));
      if (job.difference == nullptr) continue;
      load<W>(job.x + i, x);
      store_difference<W>(x, value, job.difference + i);
    }
  }
};

/// The largest magnitude among decoded values.
struct Largest {
  struct Job {
    const float* x;
    std::size_t count;  ///< a multiple of 64
  };
  template <int W>
  TIGHTWIRE_INLINE static AbsMax run(const Job& given) {
    const Job job = given;
    Statistic<AbsMax, W> statistic;
    for (std::size_t i = 0; i < job.count; i += 4 * W) {
      Lanes<float, W> x[4];
      load<W>(job.x + i, x);
      statistic.add(x);
    }
    return statistic.result();
  }
};

}  // namespace tightwire::host
