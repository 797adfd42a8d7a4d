#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/find_large.hpp>
#include <tightwire/momentum.hpp>

namespace tightwire::host {

/// Calls `f(x, n, at)` for one tile of fp32 after the other, of a buffer of any type; what it leaves in x is written
/// back.
template <class F>
void for_tiles(ElementType type, void* data, std::size_t count, bool write, const F& f) {
  constexpr std::size_t kElements = 1024;
  alignas(64) float x[kElements];
  for (std::size_t at = 0; at < count; at += kElements) {
    const std::size_t n = std::min(kElements, count - at);
    std::byte* const place = static_cast<std::byte*>(data) + at * element_bytes(type);
    widen(level(), type, place, n, x);
    f(x, n, at);
    if (write) narrow(level(), type, x, n, place);
  }
}

/// data := what the optimizer is to apply, of a gradient that all ranks hold.
inline void apply_momentum(const MomentumCorrection& momentum, ElementType type, void* data, std::size_t count,
                           const Residual& state) {
  for_tiles(type, data, count, true, [&](float* x, std::size_t n, std::size_t at) {
    run<ApplyMomentum>(level(), {x, state.before + at, state.after + at, x, n, momentum.factor, momentum.nesterov});
    // Which of two NaNs an addition hands on is not the same everywhere.
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] != x[i] ? tightwire::detail::from_bits(0x7fc00000u) : x[i];
  });
}

inline double sum_of_squares(ElementType type, const void* data, std::size_t count) {
  double sum = 0;
  for_tiles(type, const_cast<void*>(data), count, false, [&](const float* x, std::size_t n, std::size_t) {
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  });
  return sum;
}
inline void scale(ElementType type, void* data, std::size_t count, float factor) {
  for_tiles(type, data, count, true, [&](float* x, std::size_t n, std::size_t) {
    for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
  });
}

}  // namespace tightwire::host
