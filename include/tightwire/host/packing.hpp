#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <tightwire/codec/concept.hpp>

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
constexpr std::size_t code_bytes(int bits, std::size_t count) { return (count * static_cast<std::size_t>(bits) + 7) / 8; }

/// The integer that holds one code between arithmetic and packing.
template <int Bits>
using CodeUnit = std::conditional_t<Bits <= 8, std::int8_t, std::conditional_t<Bits == 16, std::uint16_t, std::uint32_t>>;

/// Codes -> wire, Count of them (a compile-time constant, so that the loop vectorises everywhere).
template <int Bits, int Count>
TIGHTWIRE_INLINE void pack(const CodeUnit<Bits>* codes, std::byte* wire) {
  if constexpr (Bits == 4) {
    std::uint16_t pairs[Count / 2];
    std::uint8_t bytes[Count / 2];
    std::memcpy(pairs, codes, Count);
    for (int i = 0; i < Count / 2; ++i)
      bytes[i] = static_cast<std::uint8_t>((pairs[i] & 0x0fu) | ((pairs[i] >> 4) & 0xf0u));
    std::memcpy(wire, bytes, Count / 2);
  } else {
    std::memcpy(wire, codes, Count * sizeof(CodeUnit<Bits>));
  }
}

/// Wire -> codes, sign-extended where the code is signed.
template <int Bits, int Count>
TIGHTWIRE_INLINE void unpack(const std::byte* wire, CodeUnit<Bits>* codes) {
  if constexpr (Bits == 4) {
    std::uint8_t bytes[Count / 2];
    std::uint16_t pairs[Count / 2];
    std::memcpy(bytes, wire, Count / 2);
    for (int i = 0; i < Count / 2; ++i) {
      const unsigned spread = (bytes[i] & 0x0fu) | ((bytes[i] & 0xf0u) << 4);
      // Per byte: (nibble ^ 8) - 8, done on both at once without a borrow between them.
      const unsigned flipped = spread ^ 0x0808u;
      pairs[i] = static_cast<std::uint16_t>(((flipped | 0x8080u) - 0x0808u) ^ 0x8080u);
    }
    std::memcpy(codes, pairs, Count);
  } else {
    std::memcpy(codes, wire, Count * sizeof(CodeUnit<Bits>));
  }
}

}  // namespace tightwire::host
