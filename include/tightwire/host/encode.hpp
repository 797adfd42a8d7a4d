#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/host/make_noise.hpp>
#include <tightwire/host/tile.hpp>

namespace tightwire::host {

/// A slice: data + residual -> wire.
inline std::uint64_t encode(const BoundCodec& codec, ElementType type, const Coder::Encode& job) {
  const Form& form = codec.form;
  const Layout shape = layout(form, job.count);
  clear_padding(shape, job.wire);
  const Elements from{type, static_cast<const std::byte*>(job.data), job.residual};
  const Tiles tiles{job.count, form.tile};
  const Destination to{job.wire + shape.codes_at, job.residual, nullptr, ElementType::f32, job.past_cache};

  Arena arena;
  const TileScales known(form, codec.loops, arena);
  TileWriter writer(form, codec.loops, codec.level, arena);
  TileMemory memory(form, arena);
  float* const noise = arena.floats(job.noise != nullptr ? form.tile + 2 * detail::kNoiseGroup : 0);
  std::uint64_t nonfinite = 0;
  for (std::size_t t = 0; t < tiles.number(); ++t) {
    const std::size_t begin = tiles.begin(t);
    Tile tile = tile_of(codec, from, begin, tiles.elements(t), memory);
    tile.noise = noise_of(codec.level, job.noise, begin, tile.units(), noise);
    const bool finite = find_scales(codec, tile, job.wire, known);
    nonfinite += writer.put(tile, known, finite, to);
  }
  if (job.residual.past_cache || job.past_cache) detail::order_stores_past_cache();
  return nonfinite;
}

}  // namespace tightwire::host
