#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/host/make_noise.hpp>
#include <tightwire/host/tile.hpp>

namespace tightwire::host {

/// Slices that one loop encodes, as far as they are whole tiles of finite elements.
class TileRuns {
 public:
  TileRuns(const BoundCodec& codec, ElementType type, const Coder::Encode& job, ResidualRounding& rounding)
      : codec_(codec),
        job_(job),
        rounding_(rounding),
        codes_(job.wire + layout(codec.form, job.count).codes_at),
        possible_(codec.loops.encode_tiles != nullptr && !codec.rotation && holds_floats(type, job.data)) {}

  /// What is still to be read when the noise of a tile is made.
  Ahead ahead(std::size_t begin) const {
    if (!possible_) return {};
    const float* const added = job_.residual.before;
    return {static_cast<const float*>(job_.data) + begin + kAhead, added != nullptr ? added + begin + kAhead : nullptr};
  }
  /// From element `begin` on, which `noise` is for unless null. Returns how many elements it took.
  std::size_t encode(std::size_t begin, const float* noise) const {
    if (!possible_) return 0;
    const Form& form = codec_.form;
    const Residual residual = advanced(job_.residual, begin);
    std::size_t left = job_.count - begin;
    if (noise != nullptr) left = std::min(left, form.tile);
    ResidualBits bits{};
    if (residual.in_bf16()) {
      const ResidualRounding::Run run = rounding_.run_at(residual.bf16.rounding, 0);
      bits = run.bits;
      left = std::min(left, run.left);
    }
    if (left < form.tile) return 0;
    std::byte* const codes = codes_ + code_bytes(form, begin);
    const void* const after = residual.in_bf16() ? static_cast<const void*>(residual.bf16.after) : residual.after;
    const std::size_t alignment = residual.in_bf16() ? 16 : 64;
    return codec_.loops.encode_tiles({
        .x = static_cast<const float*>(job_.data) + begin,
        .added = residual.before,
        .added_bf16 = residual.bf16.before,
        .noise = noise,
        .count = left / form.tile * form.tile,
        .tile = form.tile,
        .part = form.part,
        .parts_per_block = form.parts_per_block,
        .params = job_.wire + form.params_at(begin),
        .codes = codes,
        .difference = residual.after,
        .difference_bf16 = residual.bf16.after,
        .bits = bits,
        .codes_past_cache = job_.past_cache && form.tile * form.bits % 128 == 0 && codes_aligned(codes),
        .difference_past_cache = residual.past_cache && reinterpret_cast<std::uintptr_t>(after) % alignment == 0,
    });
  }

 private:
  const BoundCodec& codec_;
  const Coder::Encode& job_;
  ResidualRounding& rounding_;
  std::byte* codes_;
  bool possible_;
};

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
  const TileRuns runs(codec, type, job, writer.rounding());
  std::uint64_t nonfinite = 0;
  for (std::size_t t = 0; t < tiles.number();) {
    const std::size_t begin = tiles.begin(t), count = tiles.elements(t);
    const float* const tile_noise =
        noise_of(codec.level, job.noise, begin, align_up(count, kUnit), noise, runs.ahead(begin));
    if (const std::size_t taken = runs.encode(begin, tile_noise); taken != 0) {
      t += taken / form.tile;
      continue;
    }
    Tile tile = tile_of(codec, from, begin, count, memory);
    tile.noise = tile_noise;
    const bool finite = find_scales(codec, tile, job.wire, known);
    nonfinite += writer.put(tile, known, finite, to);
    ++t;
  }
  if (job.residual.past_cache || job.past_cache) detail::order_stores_past_cache();
  return nonfinite;
}

}  // namespace tightwire::host
