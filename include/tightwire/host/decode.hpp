#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <tightwire/coder.hpp>
#include <tightwire/host/tile.hpp>

namespace tightwire::host {

/// The codes of a tile of an encoded slice, a whole number of bytes each, in whole units: where they lie if that is
/// what they are, else in `memory`.
inline const std::byte* codes_of(const Form& form, const Loops& loops, const std::byte* codes, std::size_t begin,
                                 std::size_t count, std::byte* memory) {
  const std::byte* from = codes + code_bytes(form, begin);
  if (form.bits >= 8 && count % kUnit == 0) return from;
  const std::size_t bytes = count * form.code_bytes;
  if (form.base != 0)
    for (std::size_t at = 0; at < count; at += form.block)
      loops.unpack({from + code_bytes(form, at), std::min(form.block, count - at), memory + at});
  else if (form.bits < 8)
    loops.unpack({from, count, memory});
  else
    std::memcpy(memory, from, bytes);
  std::memset(memory + bytes, 0, align_up(count, kUnit) * form.code_bytes - bytes);
  return memory;
}

/// Rotates elements back, in place, whole units. Returns how many are beyond a buffer of the type. NaNs are all the
/// one: an infinity minus an infinity is another than what it may meet then.
inline std::uint64_t rotate_back(Level level, const Rotation& rotation, float* x, std::size_t count, ElementType type) {
  rotation.inverse(level, x, count);
  fill_unit(x, count);
  const int overflow = overflow_bits(type);
  if (largest_bits(level, x, align_up(count, kUnit)) < overflow) [[likely]]
    return 0;
  return settle_overflows(x, count, overflow);
}

/// A slice: wire -> a buffer.
inline void decode(const BoundCodec& codec, ElementType type, const Coder::Decode& job) {
  const auto& [form, loops, level, rotation] = codec;
  const Layout shape = layout(form, job.count);
  auto* const out = static_cast<std::byte*>(job.out);
  const Tiles tiles{job.count, form.tile};
  const bool past_cache = type == ElementType::f32 && job.past_cache && !rotation;
  Arena arena;
  std::byte* const scales = arena.bytes(form.parts(form.tile) * loops.scale_bytes);
  std::byte* const codes = arena.bytes(form.tile * form.code_bytes);
  float* const values = arena.floats(form.tile);
  for (std::size_t t = 0; t < tiles.number(); ++t) {
    const std::size_t begin = tiles.begin(t);
    const std::size_t count = tiles.elements(t);
    loops.scales_of({job.wire + form.params_at(begin), form.parts(count), form.parts_per_block, scales});
    std::byte* const to = out + begin * element_bytes(type);
    const bool direct = holds_floats(type, to) && count % kUnit == 0;
    auto* const x = direct ? reinterpret_cast<float*>(to) : values;
    loops.dequantize({codes_of(form, loops, job.wire + shape.codes_at, begin, count, codes), align_up(count, kUnit),
                      form.part, scales, x, direct && past_cache && is_aligned(to)});
    if (rotation) rotate_back(level, rotation, x, count, ElementType::f32);
    if (!direct) narrow(level, type, values, count, to);
  }
  if (past_cache) detail::order_stores_past_cache();
}

}  // namespace tightwire::host
