#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tightwire/codec/concept.hpp>
#include <tightwire/detail/digits.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

constexpr std::size_t align_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
/// On the wire.
constexpr std::size_t code_bytes(const Form& form, std::size_t count) {
  if (form.base == 0) return (count * form.bits + 7) / 8;
  return count / form.block * detail::digit_bytes(form.base, form.block) +
         detail::digit_bytes(form.base, count % form.block);
}

template <class T>
inline constexpr std::size_t kBytesOf = std::is_empty_v<T> ? 0 : sizeof(T);
template <BlockCodec C>
inline constexpr std::size_t kParamBytes = kBytesOf<typename C::Param>;
template <BlockCodec C>
inline constexpr std::size_t kSharedBytes = kBytesOf<SharedOf<C>>;
/// Of a code between the loops.
template <BlockCodec C>
inline constexpr std::size_t kCodeBytes = C::bits <= 8 ? 1 : C::bits / 8;

template <BlockCodec C>
constexpr Form form(const C& codec, std::size_t rotated = 1) {
  const auto block = static_cast<std::size_t>(codec.block);
  const std::size_t grain = std::max(block, rotated);
  const auto part = static_cast<std::size_t>(part_of(codec));
  const std::size_t tile = grain * std::max<std::size_t>(1, kTile / grain);
  return {.bits = static_cast<std::size_t>(C::bits),
          .base = base_of<C>,
          .code_bytes = kCodeBytes<C>,
          .param_bytes = kParamBytes<C>,
          .shared_bytes = kSharedBytes<C>,
          .block = block,
          .part = std::is_empty_v<typename C::Scale> ? kLargestTile : part,
          .parts_per_block = block / part,
          .grain = grain,
          .tile = tile};
}

/// Layout of an encoded slice: [(Shared, Param x parts) x blocks][codes, first element in the low bits], each starting
/// on and padded with zeros to a multiple of 16 bytes.
struct Layout {
  std::size_t params;  ///< bytes
  std::size_t codes_at;
  std::size_t codes;  ///< bytes
  std::size_t bytes;
};
constexpr Layout layout(const Form& form, std::size_t count) {
  Layout layout{};
  layout.params = form.blocks(count) * form.shared_bytes + form.parts(count) * form.param_bytes;
  layout.codes_at = align_up(layout.params, 16);
  layout.codes = code_bytes(form, count);
  layout.bytes = layout.codes_at + align_up(layout.codes, 16);
  return layout;
}

}  // namespace tightwire::host
