#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/host/tile.hpp>

namespace tightwire::host {

/// A slice: data + residual -> wire. The next tile's statistics are formed before this one is quantized, so that
/// nothing waits for a scale, which comes out of a chain of dependent instructions.
inline std::uint64_t encode(const Form& form, const Loops& loops, Level level, ElementType type,
                            const Coder::Encode& job) {
  const Layout shape = layout(form, job.count);
  clear_padding(shape, job.wire);
  const auto* data = static_cast<const std::byte*>(job.data);
  const Tiles tiles{job.count, form.tile};
  const Destination to{job.wire + shape.codes_at, job.residual, nullptr, ElementType::f32, job.past_cache};
  const std::size_t number = tiles.number();

  TileMemory memory[2];
  Stats stats[2];
  Scales scales[2];
  Tile tile[2];
  bool finite[2] = {};
  TileWriter writer(form, loops, level);
  std::uint64_t nonfinite = 0;
  for (std::size_t t = 0; t <= number; ++t) {
    if (t < number) {
      const std::size_t now = t % 2;
      tile[now] = tile_of(level, type, data, job.residual, tiles.begin(t), tiles.elements(t), memory[now]);
      loops.statistics({tile[now].x, tile[now].added, tile[now].units(), form.part, stats[now].bytes});
      finite[now] = loops.scales({stats[now].bytes, form.parts(tile[now].count),
                                  job.wire + form.blocks(tiles.begin(t)) * form.param_bytes, scales[now].bytes});
    }
    if (t == 0) continue;
    Upcoming soon;
    if (tiles.has_whole(t + 1)) {
      soon.data(data, tiles.begin(t + 1), element_bytes(type));
      soon.sender(job.residual.before, tiles.begin(t + 1));
    }
    const std::size_t last = (t - 1) % 2;
    nonfinite += writer.put(tile[last], stats[last], scales[last], finite[last], to, soon);
  }
  if (job.residual.past_cache || job.past_cache) detail::order_stores_past_cache();
  return nonfinite;
}

}  // namespace tightwire::host
