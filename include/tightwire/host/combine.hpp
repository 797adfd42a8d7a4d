#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/host/decode.hpp>
#include <tightwire/host/make_noise.hpp>
#include <tightwire/host/tile.hpp>

namespace tightwire::host {

/// A slice: the sum of all contributions -> wire and out, tile by tile. The sum never reaches memory.
class Combine {
 public:
  /// `lossless`: what is decoded is what was encoded, if it is finite.
  Combine(const BoundCodec& codec, ElementType type, bool lossless, const Coder::Combine& job)
      : codec_(codec),
        form_(codec.form),
        loops_(codec.loops),
        level_(codec.level),
        rotation_(codec.rotation),
        type_(type),
        lossless_(lossless),
        job_(job),
        shape_(layout(codec.form, job.count)),
        own_(
            static_cast<std::size_t>(std::find(job.sources.begin(), job.sources.end(), nullptr) - job.sources.begin())),
        known_(codec.form, codec.loops, arena_),
        own_values_(arena_.floats(codec.form.tile)),
        sum_(arena_.floats(codec.form.tile)),
        writer_(codec.form, codec.loops, codec.level, arena_),
        memory_(codec.form, arena_),
        values_(arena_.floats(codec.form.tile)),
        noise_(arena_.floats(codec.form.tile + 2 * detail::kNoiseGroup)) {
    for (std::size_t k = 0; k < std::min(kMostSources, job.sources.size()); ++k) {
      source_scales_[k] = arena_.bytes(form_.parts(form_.tile) * loops_.scale_bytes);
      source_codes_[k] = arena_.bytes(form_.tile * form_.code_bytes);
    }
  }

  Coder::NonFinite run() {
    if (job_.wire != nullptr) clear_padding(shape_, job_.wire);
    const Tiles tiles{job_.count, form_.tile};
    for (std::size_t t = 0; t < tiles.number(); ++t) {
      const std::size_t begin = tiles.begin(t);
      const std::size_t count = tiles.elements(t);
      bring(begin + std::max(kAhead, 2 * form_.tile));
      if (has_own()) take_own(begin, count);
      sum(begin, count);
      job_.wire == nullptr ? put_sum(begin, count) : put_encoded(begin, count);
    }
    if (job_.sender.past_cache || job_.owner.past_cache || job_.past_cache) detail::order_stores_past_cache();
    return met_;
  }

 private:
  /// Asks for what a tile at `begin` will read and write. Many streams are more than a processor follows by itself.
  void bring(std::size_t begin) const {
    if (begin >= job_.count) return;
    const std::size_t count = std::min(form_.tile, job_.count - begin);
    for (const std::byte* const wire : job_.sources)
      if (wire != nullptr) bring(wire + shape_.codes_at + code_bytes(form_, begin), code_bytes(form_, count));
    if (has_own())
      bring(static_cast<const std::byte*>(job_.data) + begin * element_bytes(type_), count * element_bytes(type_));
    for (const Residual* const residual : {&job_.sender, &job_.owner}) {
      if (residual->before != nullptr) bring(residual->before + begin, count * sizeof(float));
      if (residual->in_bf16()) bring(residual->bf16.before + begin, count * sizeof(std::uint16_t));
    }
  }
  static void bring(const void* from, std::size_t bytes) {
    for (std::size_t line = 0; line < bytes; line += 64) detail::prefetch(static_cast<const std::byte*>(from) + line);
  }
  bool has_own() const { return own_ < job_.sources.size(); }
  std::byte* out(std::size_t begin) const { return static_cast<std::byte*>(job_.out) + begin * element_bytes(type_); }

  /// Our own contribution, as everyone would decode it.
  void take_own(std::size_t begin, std::size_t count) {
    const Elements own{type_, static_cast<const std::byte*>(job_.data), job_.sender};
    Tile tile = tile_of(codec_, own, begin, count, memory_);
    tile.noise = noise_of(level_, job_.sender_noise, begin, tile.units(), noise_);
    const bool finite = find_scales(codec_, tile, nullptr, known_);
    if (lossless_ && finite && !job_.sender) {
      own_source_ = tile.x;
      return;
    }
    own_source_ = own_values_;
    met_.contribution +=
        writer_.put(tile, known_, finite, {nullptr, job_.sender, own_values_, ElementType::f32, false});
  }

  void sum(std::size_t begin, std::size_t count) {
    const std::size_t ranks = job_.sources.size();
    for (std::size_t from = 0; from < ranks; from += kMostSources) {
      const std::size_t number = std::min(kMostSources, ranks - from);
      Source sources[kMostSources];
      for (std::size_t k = 0; k < number; ++k) {
        const std::byte* wire = job_.sources[from + k];
        if (wire == nullptr) {
          sources[k] = {nullptr, nullptr, own_source_};
          continue;
        }
        loops_.scales_of({wire + form_.params_at(begin), form_.parts(count), form_.parts_per_block, source_scales_[k]});
        sources[k] = {codes_of(form_, loops_, wire + shape_.codes_at, begin, count, source_codes_[k]),
                      source_scales_[k], nullptr};
      }
      loops_.accumulate(
          {sources, number, from == 0, from + number == ranks, job_.divisor, sum_, align_up(count, kUnit), form_.part});
    }
    // What the last unit has beyond the slice is of no contribution.
    fill_unit(sum_, count);
  }

  void put_sum(std::size_t begin, std::size_t count) {
    const int overflow = overflow_bits(type_);
    if (rotation_)
      met_.result += rotate_back(level_, rotation_, sum_, count, type_);
    else if (largest_bits(level_, sum_, align_up(count, kUnit)) >= overflow) [[unlikely]]
      met_.result += settle_overflows(sum_, count, overflow);
    narrow(level_, type_, sum_, count, out(begin));
  }

  void put_encoded(std::size_t begin, std::size_t count) {
    Tile tile{sum_, added_of(job_.owner, begin, count, memory_.added), nullptr, begin, count};
    if (job_.owner.in_bf16()) add_residual(level_, job_.owner, tile, sum_);
    // A codec of the buffer's own type has no residual for what it would cut off: the sum is one the buffer cannot
    // hold.
    const int overflow = overflow_bits(type_);
    if (lossless_ && type_ != ElementType::f32 && largest_bits(level_, tile.x, tile.units(), tile.added) >= overflow)
        [[unlikely]]
      overflow_to_infinity(sum_, tile.added, tile.units(), overflow);
    tile.noise = noise_of(level_, job_.owner_noise, begin, tile.units(), noise_);
    const bool finite = find_scales(codec_, tile, job_.wire, known_);
    if (rotation_) return put_rotated(tile, finite);
    const bool direct = holds_floats(type_, out(begin)) && !tile.ragged();
    float* const values = direct ? reinterpret_cast<float*>(out(begin)) : values_;
    met_.result +=
        writer_.put(tile, known_, finite, {job_.wire + shape_.codes_at, job_.owner, values, type_, job_.past_cache});
    if (!direct) narrow(level_, type_, values, count, out(begin));
  }

  /// What the buffer rounds off goes back into the residual, rotated as that is.
  void put_rotated(const Tile& tile, bool finite) {
    const std::uint64_t in_codes = writer_.quantize(
        tile, known_, finite, {job_.wire + shape_.codes_at, job_.owner, values_, ElementType::f32, job_.past_cache});
    const std::uint64_t in_values = rotate_back(level_, rotation_, values_, tile.count, type_);
    met_.result += finite ? in_codes + in_values : std::max(in_codes, in_values);
    std::byte* const to = out(tile.begin);
    if (type_ != ElementType::f32 && job_.owner) {
      float* const rounding = memory_.x;
      std::copy(values_, values_ + tile.units(), sum_);
      round(level_, type_, sum_, values_, rounding, tile.units());
      if (in_values != 0) [[unlikely]]  // what did not arrive is not to be made up for
        for (std::size_t i = 0; i < tile.count; ++i)
          if (!is_finite(rounding[i]) || !is_finite(values_[i])) rounding[i] = 0.0f;
      rotation_.forward(level_, rounding, tile.count);
      float* const difference = writer_.difference(tile, job_.owner);
      for (std::size_t i = 0; i < tile.count; ++i) difference[i] += rounding[i];
    }
    writer_.keep(tile, job_.owner);
    narrow(level_, type_, values_, tile.count, to);
  }

  const BoundCodec& codec_;
  const Form& form_;
  const Loops& loops_;
  Level level_;
  const Rotation& rotation_;
  ElementType type_;
  bool lossless_;
  const Coder::Combine& job_;
  Layout shape_;
  std::size_t own_;  ///< our place among the ranks, or their number
  Coder::NonFinite met_;
  Arena arena_;
  TileScales known_;
  float* own_values_;
  const float* own_source_ = nullptr;
  float* sum_;
  TileWriter writer_;
  TileMemory memory_;
  float* values_;
  float* noise_;
  std::byte* source_scales_[kMostSources];
  std::byte* source_codes_[kMostSources];
};

}  // namespace tightwire::host
