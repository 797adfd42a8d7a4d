#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tightwire/codec/concept.hpp>
#include <tightwire/detail/pack.hpp>

namespace tightwire::host {

constexpr std::size_t align_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

template <BlockCodec C>
inline constexpr std::size_t kParamBytes = std::is_empty_v<typename C::Param> ? 0 : sizeof(typename C::Param);

/// Layout of an encoded slice: [Param x blocks][codes, first element in the low bits], each part starting on and padded
/// with zeros to a multiple of 16 bytes.
template <BlockCodec C>
struct Layout {
  std::size_t blocks;
  std::size_t codes_at;
  std::size_t bytes;
};
template <BlockCodec C>
constexpr Layout<C> layout(const C& codec, std::size_t count) {
  const auto block = static_cast<std::size_t>(codec.block);
  const std::size_t blocks = (count + block - 1) / block;
  const std::size_t codes_at = align_up(blocks * kParamBytes<C>, 16);
  return {blocks, codes_at, codes_at + align_up((count * C::bits + 7) / 8, 16)};
}
constexpr std::size_t code_bytes(int bits, std::size_t count) {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

/// Codes of 4 * W elements -> wire. Codes of 4 and 8 bits are signed and in range.
template <int Bits, int W>
TIGHTWIRE_INLINE void pack(const detail::FourLanes<W>& codes, std::byte* wire) {
  if constexpr (Bits == 4) {
    detail::narrow_to_4(codes, wire);
  } else if constexpr (Bits == 8) {
    detail::narrow_to_8(codes, wire);
  } else if constexpr (Bits == 16) {
    detail::narrow_to_16(codes, wire);
  } else {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) codes[i].store(wire + 4 * W * i);
  }
}

/// Wire -> codes; those of 4 and 8 bits are signed, those of 16 are not.
template <int Bits, int W>
TIGHTWIRE_INLINE void unpack(const std::byte* wire, detail::FourLanes<W>& codes) {
  if constexpr (Bits == 4) {
    detail::widen_from_4(wire, codes);
  } else if constexpr (Bits == 8) {
    detail::widen_from_8(wire, codes);
  } else if constexpr (Bits == 16) {
    detail::widen_from_16(wire, codes);
  } else {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) codes[i] = detail::Lanes<int, W>::load(wire + 4 * W * i);
  }
}

/// One code by itself, in order of i: an odd 4-bit code joins what its neighbour left.
template <int Bits>
void put_code(int code, std::size_t i, std::byte* wire) {
  if constexpr (Bits == 4) {
    const auto nibble = static_cast<std::byte>(code & 15);
    wire[i / 2] = i % 2 == 0 ? nibble : wire[i / 2] | nibble << 4;
  } else {
    using Unit =
        std::conditional_t<Bits == 8, std::uint8_t, std::conditional_t<Bits == 16, std::uint16_t, std::uint32_t>>;
    const auto unit = static_cast<Unit>(code);
    std::memcpy(wire + i * sizeof unit, &unit, sizeof unit);
  }
}

}  // namespace tightwire::host
