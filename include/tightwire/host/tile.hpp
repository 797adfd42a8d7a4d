#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <tightwire/host/arena.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/layout.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/host/residual.hpp>
#include <tightwire/host/rotation.hpp>
#include <tightwire/host/statistics.hpp>

namespace tightwire::host {

/// A codec with its settings, and the loops that work for it.
struct BoundCodec {
  Form form;
  Loops loops;
  Level level;
  Rotation rotation;
};

/// What is read of a slice.
struct Elements {
  ElementType type;
  const std::byte* data;
  Residual residual;
};

/// Room for a tile where a buffer cannot be used as it is: 16-bit elements, and a slice that ends within a unit.
struct TileMemory {
  float* x;
  float* added;
  TileMemory(const Form& form, Arena& arena) : x(arena.floats(form.tile)), added(arena.floats(form.tile)) {}
};
/// What is known of a tile.
struct TileScales {
  std::byte* stats;
  std::byte* scales;
  TileScales(const Form& form, const Loops& loops, Arena& arena)
      : stats(arena.bytes(form.parts(form.tile) * loops.stat_bytes)),
        scales(arena.bytes(form.parts(form.tile) * loops.scale_bytes)) {}
};

/// Elements `begin` to `begin + count` of a slice as the loops take them: x + added, in whole units.
struct Tile {
  const float* x = nullptr;
  const float* added = nullptr;
  const float* noise = nullptr;
  std::size_t begin = 0;
  std::size_t count = 0;

  std::size_t units() const { return align_up(count, kUnit); }
  bool ragged() const { return count % kUnit != 0; }
};

/// The tiles of a slice.
struct Tiles {
  std::size_t count;  ///< of the slice
  std::size_t size;

  std::size_t number() const { return (count + size - 1) / size; }
  std::size_t begin(std::size_t t) const { return t * size; }
  std::size_t elements(std::size_t t) const { return std::min(size, count - t * size); }
};

/// Repeats the last element to the end of its unit, which changes no statistic.
inline void fill_unit(float* x, std::size_t count) { std::fill(x + count, x + align_up(count, kUnit), x[count - 1]); }

/// A tile's part of a residual in fp32, in whole units.
inline const float* added_of(const Residual& residual, std::size_t begin, std::size_t count, float* memory) {
  const float* added = advanced(residual, begin).before;
  if (added == nullptr || count % kUnit == 0) return added;
  std::memcpy(memory, added, count * sizeof(float));
  fill_unit(memory, count);
  return memory;
}
/// A tile's part of a residual in bf16 is added before the loops, which know of fp32 alone.
inline void add_residual(Level level, const Residual& residual, Tile& tile, float* memory) {
  run<AddResidual>(level, {tile.x, residual.bf16.before + tile.begin, tile.count, memory});
  fill_unit(memory, tile.count);
  tile.x = memory;
}
/// A tile of a buffer, rotated, and its residual.
inline Tile tile_of(const BoundCodec& codec, const Elements& from, std::size_t begin, std::size_t count,
                    TileMemory& memory) {
  const std::byte* data = from.data + begin * element_bytes(from.type);
  Tile tile{reinterpret_cast<const float*>(data), added_of(from.residual, begin, count, memory.added), nullptr, begin,
            count};
  if (!holds_floats(from.type, data) || tile.ragged() || codec.rotation) {
    widen(codec.level, from.type, data, count, memory.x);
    if (codec.rotation) codec.rotation.forward(codec.level, memory.x, count);
    fill_unit(memory.x, count);
    tile.x = memory.x;
  }
  if (from.residual.in_bf16()) add_residual(codec.level, from.residual, tile, memory.x);
  return tile;
}

/// The scales of a tile, and its Params where they are wanted. False if something is not finite.
inline bool find_scales(const BoundCodec& codec, const Tile& tile, std::byte* params, const TileScales& known) {
  const auto& [form, loops, level, rotation] = codec;
  loops.statistics({tile.x, tile.added, tile.units(), form.part, known.stats});
  if (loops.moments != nullptr) loops.moments({tile.x, tile.added, tile.count, form.part, known.stats});
  std::byte* const at = params != nullptr ? params + form.params_at(tile.begin) : nullptr;
  const bool finite = loops.scales(
      {known.stats, form.parts(tile.count), form.parts_per_block, at, known.scales, tile.noise != nullptr});
  if (loops.fit != nullptr) loops.fit({tile.x, tile.added, tile.count, form.part, known.stats, at, known.scales});
  return finite;
}

/// Where a tile goes. What is null is not wanted.
struct Destination {
  std::byte* codes;   ///< of the slice, on the wire
  Residual residual;  ///< of the slice
  float* values;      ///< of the tile, room for whole units
  ElementType type;   ///< to which values are rounded before the difference is taken
  bool codes_past_cache;
};

/// Encoded slices lie on multiples of 16 bytes, which is enough to store them past the caches.
inline bool codes_aligned(const std::byte* codes) { return reinterpret_cast<std::uintptr_t>(codes) % 16 == 0; }

/// Puts tiles where they go, whatever their ends and elements are.
class TileWriter {
 public:
  TileWriter(const Form& form, const Loops& loops, Level level, Arena& arena)
      : form_(form),
        loops_(loops),
        level_(level),
        codes_(arena.bytes(form.tile * form.code_bytes)),
        packed_(arena.bytes(form.tile)),
        difference_(arena.floats(form.tile)),
        sum_(arena.floats(form.tile)),
        rounding_(level) {}

  /// Returns the number of non-finite elements. `finite`: all elements and their values are known to be.
  std::uint64_t put(const Tile& tile, const TileScales& known, bool finite, const Destination& to) {
    const std::uint64_t nonfinite = quantize(tile, known, finite, to);
    keep(tile, to.residual);
    return nonfinite;
  }

  /// The same but for the residual, of which `difference` has what is to be kept.
  std::uint64_t quantize(const Tile& tile, const TileScales& known, bool finite, const Destination& to) {
    std::byte* const wire = to.codes != nullptr ? to.codes + code_bytes(form_, tile.begin) : nullptr;
    const bool direct_codes = form_.bits >= 8 && !tile.ragged();
    const bool rounds = to.type != ElementType::f32;
    float* const difference = this->difference(tile, to.residual);
    QuantizeJob job{
        .x = tile.x,
        .added = tile.added,
        .noise = tile.noise,
        .count = tile.units(),
        .part = form_.part,
        .scales = known.scales,
        .codes = direct_codes      ? wire
                 : wire != nullptr ? codes_
                                   : nullptr,
        .difference = rounds ? nullptr : difference,
        .values = to.values,
        .codes_past_cache = direct_codes && to.codes_past_cache && codes_aligned(wire),
        .difference_past_cache = to.residual.past_cache && difference != difference_ && is_aligned(difference)};
    std::uint64_t nonfinite = 0;
    if (finite) loops_.quantize(job);
    if (finite && rounds) finite = largest_bits(level_, job.values, job.count) < overflow_bits(to.type);
    if (!finite) [[unlikely]] {
      job.difference = difference;
      nonfinite = put_parts(job, tile, known.stats, to);
    } else if (rounds) {
      round(level_, to.type, x_of(job), job.values, difference, job.count);
    }
    if (wire != nullptr) put_codes(job, tile, wire, to.codes_past_cache);
    return nonfinite;
  }

  /// Of a tile that was quantized: what becomes its residual. Null without.
  float* difference(const Tile& tile, const Residual& of_slice) const {
    if (!of_slice) return nullptr;
    return of_slice.in_bf16() || tile.ragged() ? difference_ : of_slice.after + tile.begin;
  }
  ResidualRounding& rounding() { return rounding_; }
  void keep(const Tile& tile, const Residual& of_slice) {
    const float* const difference = this->difference(tile, of_slice);
    if (difference != difference_) return;
    const Residual residual = advanced(of_slice, tile.begin);
    if (residual.in_bf16())
      rounding_.keep(difference, tile.count, residual);
    else
      std::memcpy(residual.after, difference, tile.count * sizeof(float));
  }

 private:
  /// x + added as one array.
  const float* x_of(const QuantizeJob& job) {
    if (job.added == nullptr) return job.x;
    for (std::size_t i = 0; i < job.count; ++i) sum_[i] = job.x[i] + job.added[i];
    return sum_;
  }

  void put_codes(const QuantizeJob& job, const Tile& tile, std::byte* wire, bool past_cache) {
    if (job.codes == wire) return;
    const std::size_t bytes = code_bytes(form_, tile.count);
    if (form_.bits >= 8) {
      std::memcpy(wire, codes_, bytes);
    } else if (past_cache && bytes % 16 == 0 && codes_aligned(wire)) {
      pack(tile.count, packed_);
      for (std::size_t at = 0; at < bytes; at += 16) detail::copy_past_cache(packed_ + at, wire + at, 16);
    } else {
      pack(tile.count, wire);
    }
  }
  void pack(std::size_t count, std::byte* to) const {
    const std::size_t step = form_.base != 0 ? form_.block : count;
    for (std::size_t at = 0; at < count; at += step)
      loops_.pack({codes_ + at, std::min(step, count - at), to + code_bytes(form_, at)});
  }

  /// Part by part: those that are finite, and those that are not.
  [[gnu::noinline, gnu::cold]] std::uint64_t put_parts(const QuantizeJob& all, const Tile& tile, const std::byte* stats,
                                                       const Destination& to) {
    const float* x = x_of(all);
    const float* before = tile.added;
    if (to.residual.in_bf16()) {
      widen(level_, ElementType::bf16, reinterpret_cast<const std::byte*>(to.residual.bf16.before + tile.begin),
            tile.count, sum_);
      before = sum_;
    }
    const ElementType type = to.type;
    std::uint64_t nonfinite = 0;
    for (std::size_t begin = 0, p = 0; begin < tile.count; begin += form_.part, ++p) {
      const std::size_t count = std::min(form_.part, tile.count - begin);
      float* const difference = all.difference != nullptr ? all.difference + begin : nullptr;
      QuantizeJob job = all;
      job.x = x + begin;
      job.added = nullptr;
      job.noise = all.noise != nullptr ? all.noise + begin : nullptr;
      job.count = align_up(count, kUnit);
      job.scales = static_cast<const std::byte*>(all.scales) + p * loops_.scale_bytes;
      job.codes = all.codes != nullptr ? all.codes + begin * form_.code_bytes : nullptr;
      job.values = all.values != nullptr ? all.values + begin : nullptr;
      job.difference = type == ElementType::f32 ? difference : nullptr;
      bool finite = loops_.finite(stats, p);
      if (finite) loops_.quantize(job);
      if (finite && type != ElementType::f32) {
        finite = largest_bits(level_, job.values, job.count) < overflow_bits(type);
        if (finite) round(level_, type, job.x, job.values, difference, job.count);
      }
      if (finite) continue;
      const Residual residual = difference != nullptr ? Residual{before + begin, difference} : Residual{};
      nonfinite +=
          loops_.quantize_nonfinite({job.x, count, job.scales, residual, job.codes, job.values, type, job.noise});
    }
    return nonfinite;
  }

  const Form& form_;
  const Loops& loops_;
  Level level_;
  std::byte* codes_;
  std::byte* packed_;
  float* difference_;
  float* sum_;
  ResidualRounding rounding_;
};

/// The padding of both parts of an encoded slice, so that equal slices are equal bytes.
inline void clear_padding(const Layout& shape, std::byte* wire) {
  if (shape.bytes == 0) return;  // there may be no wire
  std::memset(wire + shape.params, 0, shape.codes_at - shape.params);
  const std::size_t codes = shape.codes_at + shape.codes;
  std::memset(wire + codes, 0, shape.bytes - codes);
}

}  // namespace tightwire::host
