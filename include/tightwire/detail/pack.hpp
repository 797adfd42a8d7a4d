#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/detail/lanes.hpp>

namespace tightwire::detail {

/// Four registers of integers to and from memory as integers of 8 or 16 bits. One register each way is too few to fill
/// one after packing, and four serve every width. For 8 bits there is also a form for 16 elements.
template <int W>
using FourLanes = Lanes<int, W>[4];

/// Any width on any CPU, one element at a time. What the instruction sets below are tested against.
namespace portable {

/// Low 8 bits of each.
template <int W, int N>
void narrow_to_8(const Lanes<int, W> (&x)[N], std::byte* to) {
  for (int i = 0; i < N * W; ++i) to[i] = static_cast<std::byte>(x[i / W].v[i % W]);
}
/// Low 16 bits of each.
template <int W>
void narrow_to_16(const FourLanes<W>& x, std::byte* to) {
  for (int i = 0; i < 4 * W; ++i) {
    const auto low = static_cast<std::uint16_t>(x[i / W].v[i % W]);
    std::memcpy(to + 2 * i, &low, 2);
  }
}
/// Signed.
template <int W, int N>
void widen_from_8(const std::byte* from, Lanes<int, W> (&x)[N]) {
  for (int i = 0; i < N * W; ++i) x[i / W].v[i % W] = static_cast<std::int8_t>(from[i]);
}
/// Unsigned.
template <int W>
void widen_from_16(const std::byte* from, FourLanes<W>& x) {
  for (int i = 0; i < 4 * W; ++i) {
    std::uint16_t low = 0;
    std::memcpy(&low, from + 2 * i, 2);
    x[i / W].v[i % W] = low;
  }
}

}  // namespace portable
}  // namespace tightwire::detail

#if defined(__x86_64__)
#include <tightwire/detail/pack_x86.hpp>
#else
namespace tightwire::detail {
using namespace portable;
}
#endif

namespace tightwire::detail {

/// High 16 bits of each.
template <int W>
TIGHTWIRE_INLINE void upper_halves(const FourLanes<W>& x, std::byte* to) {
  FourLanes<W> halves;
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < 4; ++i) halves[i] = x[i] >> 16;
  narrow_to_16(halves, to);
}

}  // namespace tightwire::detail
