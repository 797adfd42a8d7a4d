#pragma once
#include <tightwire/detail/hd.hpp>
#include <tightwire/host/level.hpp>

namespace tightwire::host {

/// A kernel, `template <int W> static auto run(const Job&)`, compiled for one instruction set, in vectors of W floats.
/// Function templates with a target attribute: one source, usable from headers alone, no second definition under other
/// compiler flags.
template <class Kernel>
auto run_baseline(const typename Kernel::Job& job) {
  return Kernel::template run<4>(job);
}
template <class Kernel>
TIGHTWIRE_TARGET_AVX2 auto run_avx2(const typename Kernel::Job& job) {
  return Kernel::template run<8>(job);
}
template <class Kernel>
TIGHTWIRE_TARGET_AVX512 auto run_avx512(const typename Kernel::Job& job) {
  return Kernel::template run<16>(job);
}
template <class Kernel>
auto run(Level level, const typename Kernel::Job& job) {
  switch (level) {
    case Level::avx512: return run_avx512<Kernel>(job);
    case Level::avx2: return run_avx2<Kernel>(job);
    default: return run_baseline<Kernel>(job);
  }
}

/// The same, to be called later.
template <class Kernel>
auto at(Level level) {
  switch (level) {
    case Level::avx512: return &run_avx512<Kernel>;
    case Level::avx2: return &run_avx2<Kernel>;
    default: return &run_baseline<Kernel>;
  }
}

}  // namespace tightwire::host
