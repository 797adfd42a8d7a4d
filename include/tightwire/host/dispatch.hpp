#pragma once
#include <utility>

#include <tightwire/detail/hd.hpp>
#include <tightwire/host/level.hpp>

namespace tightwire::host {

/// A kernel, `template <int W> static auto run(const Job&)`, compiled for one instruction set, in vectors of W floats.
/// Function templates with a target attribute: one source, usable from headers alone, no second definition under other
/// compiler flags.
template <class Kernel>
using ResultOf = decltype(Kernel::template run<4>(std::declval<const typename Kernel::Job&>()));
template <class Kernel>
ResultOf<Kernel> run_baseline(const typename Kernel::Job& job) {
  return Kernel::template run<4>(job);
}
template <class Kernel>
TIGHTWIRE_TARGET_AVX2 ResultOf<Kernel> run_avx2(const typename Kernel::Job& job) {
  return Kernel::template run<8>(job);
}
template <class Kernel>
TIGHTWIRE_TARGET_AVX512 ResultOf<Kernel> run_avx512(const typename Kernel::Job& job) {
  return Kernel::template run<16>(job);
}
template <class Kernel>
ResultOf<Kernel> run(Level level, const typename Kernel::Job& job) {
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

/// `what` is `template`: compiles the kernel here; `extern template`: says that another file does. In namespace
/// tightwire::host.
#define TIGHTWIRE_KERNEL(what, ...)                                                       \
  what ResultOf<__VA_ARGS__> run_baseline<__VA_ARGS__>(const typename __VA_ARGS__::Job&); \
  what ResultOf<__VA_ARGS__> run_avx2<__VA_ARGS__>(const typename __VA_ARGS__::Job&);     \
  what ResultOf<__VA_ARGS__> run_avx512<__VA_ARGS__>(const typename __VA_ARGS__::Job&);

}  // namespace tightwire::host
