#pragma once
#include <cstddef>
#include <utility>

#include <tightwire/detail/lanes.hpp>

namespace tightwire::detail {

/// Sums and differences of lanes `Stride` apart: lane i becomes x[i] + x[i ^ Stride] or, where i has that bit,
/// x[i ^ Stride] - x[i].
template <int Stride, int W, std::size_t... I>
TIGHTWIRE_INLINE void butterfly_within(Lanes<float, W>& x, std::index_sequence<I...>) {
  Lanes<float, W> partner =
      Lanes<float, W>::of(__builtin_shufflevector(x.v, x.v, static_cast<int>(I ^ static_cast<std::size_t>(Stride))...));
  if constexpr (W > 4) {
    // x times 1 or -1 is exact, so that this is the sum or the difference, in one instruction.
    constexpr float kSigns[W] = {((I & static_cast<std::size_t>(Stride)) != 0 ? -1.0f : 1.0f)...};
    add_fused_product(partner, x, Lanes<float, W>::load(kSigns));
    x = partner;
  } else {
    const Lanes<float, W> sum = x + partner, difference = partner - x;
    x.v = __builtin_shufflevector(
        sum.v, difference.v,
        static_cast<int>((I & static_cast<std::size_t>(Stride)) != 0 ? I + static_cast<std::size_t>(W) : I)...);
  }
}

/// The first strides, within a register.
template <int W>
TIGHTWIRE_INLINE void butterflies(Lanes<float, W>& x) {
  constexpr auto kLanes = std::make_index_sequence<static_cast<std::size_t>(W)>{};
  butterfly_within<1>(x, kLanes);
  butterfly_within<2>(x, kLanes);
  if constexpr (W > 4) butterfly_within<4>(x, kLanes);
  if constexpr (W > 8) butterfly_within<8>(x, kLanes);
}

/// The Walsh-Hadamard transform of `count` floats, a power of two from 16 on, in place, without a factor. Strides 1, 2,
/// 4, ...: the order of additions is part of the wire format. `before(i, x)` changes the elements from number `i` on
/// when they are read.
template <int W, class Before>
TIGHTWIRE_INLINE void walsh_hadamard(float* x, std::size_t count, const Before& before) {
  for (std::size_t i = 0; i < count; i += W) {
    Lanes<float, W> v = Lanes<float, W>::load(x + i);
    before(i, v);
    butterflies(v);
    v.store(x + i);
  }
  for (std::size_t stride = W; stride < count; stride *= 2)
    for (std::size_t block = 0; block < count; block += 2 * stride)
      for (std::size_t i = block; i < block + stride; i += W) {
        const Lanes<float, W> a = Lanes<float, W>::load(x + i), b = Lanes<float, W>::load(x + i + stride);
        (a + b).store(x + i);
        (a - b).store(x + i + stride);
      }
}

}  // namespace tightwire::detail
