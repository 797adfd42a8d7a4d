#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/coder.hpp>
#include <tightwire/host/accumulate.hpp>
#include <tightwire/host/encode.hpp>
#include <tightwire/host/round.hpp>

namespace tightwire::host {

inline void store(Level level, ElementType type, const float* x, std::byte* out, std::size_t count) {
  switch (type) {
    case ElementType::bf16: return run<Store<ElementType::bf16>>(level, {x, out, count});
    case ElementType::f16: return run<Store<ElementType::f16>>(level, {x, out, count});
    default: std::memcpy(out, x, count * sizeof(float));
  }
}

/// Counts the elements of a sum that a buffer cannot hold, and gives all NaNs the same bits, which otherwise depend on
/// which operand of an addition comes first.
[[gnu::noinline, gnu::cold]] inline std::uint64_t settle_overflows(float* x, const Blocks& blocks, int overflow) {
  std::uint64_t overflows = 0;
  for (std::size_t b = 0; b < blocks.count; ++b) {
    for (float* at = x + b * blocks.size; at < x + b * blocks.size + blocks.valid(b); ++at) {
      const int magnitude = AbsMax::key(*at);
      if (magnitude >= overflow) ++overflows;
      if (magnitude > static_cast<int>(detail::kInfinityBits)) *at = detail::from_bits(0x7fc00000u);
    }
  }
  return overflows;
}

/// Magnitude from which fp32 rounds to infinity in a buffer of the type.
constexpr int overflow_bits(ElementType type) {
  return type == ElementType::bf16 ? 0x7f7f8000 : type == ElementType::f16 ? 0x477ff000 : 0x7f800000;
}

template <BlockCodec C>
class Combiner {
 public:
  Combiner(const C& codec, Level level, ElementType type, const Coder::Combine& job)
      : level_(level),
        type_(type),
        block_(static_cast<std::size_t>(codec.block)),
        codes_at_(layout(codec, job.count).codes_at),
        job_(job),
        has_own_(std::find(job.sources.begin(), job.sources.end(), nullptr) != job.sources.end()) {
    if (job.wire != nullptr) clear_padding(codec, job.count, job.wire);
  }

  Coder::NonFinite operator()() {
    for_each_piece(block_, job_.count, [&](const Piece& piece) {
      if (piece.padded)
        combine_padded(piece);
      else
        combine(piece);
    });
    return met_;
  }

 private:
  /// Where the outputs and the buffers of our own of a piece lie.
  struct Place {
    const std::byte* data;
    Residual sender;
    Residual owner;
    std::byte* params;
    std::byte* codes;  ///< null: the sum is not encoded
    std::byte* out;
  };
  /// Our own contribution to a piece.
  struct Own {
    alignas(64) float x[kLargestBlock];
    Scales<C> scales;
    bool decoded[kBlocksPerPiece];
  };

  /// Where a piece lies in the buffers of the caller.
  Place place(const Piece& piece) const {
    Place at{static_cast<const std::byte*>(job_.data) + piece.at * element_bytes(type_),
             advance(job_.sender, piece.at),
             {},
             nullptr,
             nullptr,
             static_cast<std::byte*>(job_.out) + piece.at * element_bytes(type_)};
    if (job_.wire != nullptr) {
      at.owner = advance(job_.owner, piece.at);
      at.params = job_.wire + params_at(piece);
      at.codes = job_.wire + codes_at(piece);
    }
    return at;
  }
  std::size_t params_at(const Piece& piece) const { return piece.first_block * kParamBytes<C>; }
  std::size_t codes_at(const Piece& piece) const { return codes_at_ + code_bytes(C::bits, piece.at); }

  void combine(const Piece& piece) {
    const Place at = place(piece);
    const Blocks blocks{piece.blocks, block_};
    alignas(64) float x[kLargestBlock];
    Own own;
    Scales<C> scales;
    if (has_own_) prepare(own, blocks, at);
    typename Accumulate<C>::Job sum = accumulation(own, at, x, scales, blocks);
    sum.sources = job_.sources;
    sum.params_at = params_at(piece);
    sum.codes_at = codes_at(piece);
    if (at.owner) sum.soon = Soon(at.owner.before + piece.count, sizeof(float));
    run<Accumulate<C>>(level_, sum);
    finish(x, scales, blocks, at);
  }

  typename Accumulate<C>::Job accumulation(const Own& own, const Place& at, float* x, Scales<C>& scales,
                                           const Blocks& blocks) const {
    typename Accumulate<C>::Job sum{};
    sum.own = {own.x, own.scales.of, own.decoded, at.sender.after};
    sum.x = x;
    sum.blocks = blocks.count;
    sum.block = blocks.size;
    sum.first = sum.last = true;
    sum.divisor = job_.divisor;
    sum.added = at.owner.before;
    sum.stats = scales.stats;
    return sum;
  }

  void prepare(Own& own, const Blocks& blocks, const Place& at) {
    gather<typename C::Stat>(level_, type_,
                             {at.data, at.sender.before, own.x, own.scales.stats, blocks.count, blocks.size});
    if (blocks.padding != nullptr) gather_again(level_, own.x, own.scales.stats, blocks);
    own.scales.find(blocks.count, nullptr);
    std::fill_n(own.decoded, blocks.count, false);
    if (own.scales.all_finite) [[likely]]
      return;
    for (std::size_t b = 0, begin = 0; b < blocks.count; ++b, begin += blocks.size) {
      if (own.scales.stats[b].finite()) continue;
      float* x = own.x + begin;
      met_.contribution += quantize_nonfinite<C>(
          {x, blocks.valid(b), advance(at.sender, begin), nullptr, x, ElementType::f32}, own.scales.of[b]);
      own.decoded[b] = true;
    }
  }

  /// x is the sum with its residual added.
  void finish(float* x, Scales<C>& scales, const Blocks& blocks, const Place& at) {
    if (at.codes == nullptr) {
      if (run<Largest>(level_, {x, blocks.elements()}).bits >= overflow_bits(type_)) [[unlikely]]
        met_.result += settle_overflows(x, blocks, overflow_bits(type_));
      return store(level_, type_, x, at.out, blocks.elements());
    }
    if (blocks.padding != nullptr) gather_again(level_, x, scales.stats, blocks);
    scales.find(blocks.count, at.params);
    typename Quantize<C>::Job job{x, scales.of, at.codes, nullptr, nullptr, blocks.count, blocks.size, {}};
    if (scales.all_finite && quantize_finite(job, at)) [[likely]]
      return;
    // Block by block, since not all is finite or in range.
    for (std::size_t b = 0, begin = 0; b < blocks.count; ++b, begin += blocks.size) {
      const Place part = place_of(at, begin);
      job = {x + begin, &scales.of[b], part.codes, nullptr, nullptr, 1, blocks.size, {}};
      if (scales.stats[b].finite() && quantize_finite(job, part)) continue;
      alignas(64) float values[kLargestBlock];
      met_.result +=
          quantize_nonfinite<C>({x + begin, blocks.valid(b), part.owner, part.codes, values, type_}, scales.of[b]);
      std::fill(values + blocks.valid(b), values + blocks.size, 0.0f);
      store(level_, type_, values, part.out, blocks.size);
    }
  }

  Place place_of(const Place& at, std::size_t begin) const {
    return {at.data + begin * element_bytes(type_),
            advance(at.sender, begin),
            advance(at.owner, begin),
            nullptr,
            at.codes + code_bytes(C::bits, begin),
            at.out + begin * element_bytes(type_)};
  }

  /// False: a value is out of the range of the buffer, and nothing but codes is written.
  bool quantize_finite(typename Quantize<C>::Job job, const Place& at) const {
    const std::size_t count = job.blocks * job.block;
    if (has_own_) job.soon[0] = Soon(at.data + count * element_bytes(type_), element_bytes(type_));
    if (has_own_ && at.sender) job.soon[1] = Soon(at.sender.before + count, sizeof(float));
    if (type_ == ElementType::f32) {
      job.difference = at.owner.after;
      job.values = reinterpret_cast<float*>(at.out);
      run<Quantize<C>>(level_, job);
      return true;
    }
    alignas(64) float values[kLargestBlock];
    job.values = values;
    run<Quantize<C>>(level_, job);
    if (run<Largest>(level_, {values, count}).bits >= overflow_bits(type_)) return false;
    if (type_ == ElementType::bf16)
      run<Round<ElementType::bf16>>(level_, {job.x, values, at.out, at.owner.after, count});
    else
      run<Round<ElementType::f16>>(level_, {job.x, values, at.out, at.owner.after, count});
    return true;
  }

  /// One source after the other, since there is room for a copy of one.
  [[gnu::noinline]] void combine_padded(const Piece& piece) {
    PaddedBuffer data, sender_before, sender_after, owner_before, owner_after, codes, out;
    const Place caller = place(piece);
    const Padding padding(block_, piece.count);
    const Blocks blocks{piece.blocks, padding.padded_block, &padding};
    const int element_bits = 8 * static_cast<int>(element_bytes(type_));
    Place at{data.bytes, {}, {}, caller.params, caller.codes != nullptr ? codes.bytes : nullptr, out.bytes};
    if (caller.sender) {
      padding.spread(32, caller.sender.before, sender_before.bytes);
      at.sender = {sender_before.floats(), sender_after.floats()};
    }
    if (caller.owner) {
      padding.spread(32, caller.owner.before, owner_before.bytes);
      at.owner = {owner_before.floats(), owner_after.floats()};
    }
    alignas(64) float x[kLargestBlock];
    Own own;
    Scales<C> scales;
    if (has_own_) {
      padding.spread(element_bits, caller.data, data.bytes);
      prepare(own, blocks, at);
    }
    for (std::size_t k = 0; k < job_.sources.size(); ++k) {
      typename Accumulate<C>::Job sum = accumulation(own, at, x, scales, blocks);
      sum.first = k == 0;
      sum.last = k + 1 == job_.sources.size();
      accumulate_padded(piece, padding, job_.sources[k], sum);
    }
    finish(x, scales, blocks, at);
    if (caller.sender) padding.collect(32, sender_after.bytes, caller.sender.after);
    if (caller.owner) padding.collect(32, owner_after.bytes, caller.owner.after);
    padding.collect(element_bits, out.bytes, caller.out);
    if (caller.codes == nullptr) return;
    padding.collect(C::bits, codes.bytes, caller.codes);
    clear_last_nibble<C>(piece.count, caller.codes);
  }

  void accumulate_padded(const Piece& piece, const Padding& padding, const std::byte* source,
                         typename Accumulate<C>::Job& sum) const {
    constexpr std::size_t kCodesAt = kBlocksPerPiece * kParamBytes<C>;
    std::byte copy[kCodesAt + 4 * kLargestBlock];
    const std::byte* padded = nullptr;
    if (source != nullptr) {
      std::memcpy(copy, source + params_at(piece), piece.blocks * kParamBytes<C>);
      padding.spread(C::bits, source + codes_at(piece), copy + kCodesAt);
      padded = copy;
    }
    sum.sources = {&padded, 1};
    sum.codes_at = kCodesAt;
    run<Accumulate<C>>(level_, sum);
  }

  Level level_;
  ElementType type_;
  std::size_t block_;
  std::size_t codes_at_;
  const Coder::Combine& job_;
  bool has_own_;
  Coder::NonFinite met_;
};

}  // namespace tightwire::host
