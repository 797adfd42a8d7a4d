#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/coder.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/gather.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/host/packing.hpp>
#include <tightwire/host/pieces.hpp>
#include <tightwire/host/quantize.hpp>

namespace tightwire::host {

template <class Stat>
void gather(Level level, ElementType type, const typename Gather<Stat, ElementType::f32>::Job& job) {
  const auto with = [&]<class Kernel>(Kernel) {
    run<Kernel>(level, {job.data, job.added, job.x, job.stats, job.blocks, job.block});
  };
  switch (type) {
    case ElementType::bf16: return with(Gather<Stat, ElementType::bf16>{});
    case ElementType::f16: return with(Gather<Stat, ElementType::f16>{});
    default: return with(Gather<Stat, ElementType::f32>{});
  }
}
/// Statistics of blocks that are in x already; what pads them is made not to matter.
template <class Stat>
void gather_again(Level level, float* x, Stat* stats, const Blocks& blocks) {
  blocks.padding->repeat_last(x);
  gather<Stat>(level, ElementType::f32,
               {reinterpret_cast<const std::byte*>(x), nullptr, x, stats, blocks.count, blocks.size});
}

/// The padding of both parts of an encoded slice, so that equal slices are equal bytes.
template <BlockCodec C>
void clear_padding(const C& codec, std::size_t count, std::byte* wire) {
  if (count == 0) return;  // there may be no wire
  const auto shape = layout(codec, count);
  const std::size_t params = shape.blocks * kParamBytes<C>;
  const std::size_t codes = shape.codes_at + code_bytes(C::bits, count);
  std::memset(wire + params, 0, shape.codes_at - params);
  std::memset(wire + codes, 0, shape.bytes - codes);
}
/// A last byte with one code of 4 bits has padding of its own.
template <BlockCodec C>
void clear_last_nibble(std::size_t count, std::byte* codes) {
  if (C::bits == 4 && count % 2 != 0) codes[count / 2] &= std::byte{15};
}

/// What is known of each block of a piece before its codes are.
template <BlockCodec C>
struct Scales {
  typename C::Stat stats[kBlocksPerPiece];
  typename C::Scale of[kBlocksPerPiece];
  bool all_finite;  ///< input and decoded values of every block

  /// From the statistics. `params` may be null: not wanted.
  void find(std::size_t blocks, std::byte* params) {
    all_finite = true;
    for (std::size_t b = 0; b < blocks; ++b) {
      const typename C::Param param = C::param(stats[b]);
      if (params != nullptr) std::memcpy(params + b * kParamBytes<C>, &param, kParamBytes<C>);
      of[b] = C::scale(param);
      all_finite = all_finite && stats[b].finite();
    }
  }
};

template <BlockCodec C>
class Encoder {
 public:
  Encoder(const C& codec, Level level, ElementType type)
      : codec_(codec), level_(level), type_(type), block_(static_cast<std::size_t>(codec.block)) {}

  std::uint64_t operator()(const Coder::Encode& job) const {
    std::uint64_t nonfinite = 0;
    clear_padding(codec_, job.count, job.wire);
    const std::size_t codes_at = layout(codec_, job.count).codes_at;
    const auto* data = static_cast<const std::byte*>(job.data);
    for_each_piece(block_, job.count, [&](const Piece& piece) {
      const Place place{data + piece.at * element_bytes(type_), advance(job.residual, piece.at),
                        job.wire + piece.first_block * kParamBytes<C>,
                        job.wire + codes_at + code_bytes(C::bits, piece.at)};
      nonfinite += piece.padded ? encode_padded(piece, place) : encode({piece.blocks, block_}, place);
    });
    return nonfinite;
  }

 private:
  /// Where a piece lies.
  struct Place {
    const std::byte* data;
    Residual residual;
    std::byte* params;
    std::byte* codes;
  };

  std::uint64_t encode(const Blocks& blocks, const Place& at) const {
    alignas(64) float x[kLargestBlock];
    Scales<C> scales;
    gather<typename C::Stat>(level_, type_, {at.data, at.residual.before, x, scales.stats, blocks.count, blocks.size});
    if (blocks.padding != nullptr) gather_again(level_, x, scales.stats, blocks);
    scales.find(blocks.count, at.params);
    if (!scales.all_finite) [[unlikely]]
      return encode_some_nonfinite(x, scales, blocks, at);
    typename Quantize<C>::Job job{x, scales.of, at.codes, at.residual.after, nullptr, blocks.count, blocks.size, {}};
    job.soon[0] = Soon(at.data + blocks.elements() * element_bytes(type_), element_bytes(type_));
    if (at.residual) job.soon[1] = Soon(at.residual.before + blocks.elements(), sizeof(float));
    run<Quantize<C>>(level_, job);
    return 0;
  }

  std::uint64_t encode_some_nonfinite(const float* x, const Scales<C>& scales, const Blocks& blocks,
                                      const Place& at) const {
    std::uint64_t nonfinite = 0;
    for (std::size_t b = 0, begin = 0; b < blocks.count; ++b, begin += blocks.size) {
      std::byte* codes = at.codes + code_bytes(C::bits, begin);
      const Residual residual = advance(at.residual, begin);
      if (scales.stats[b].finite())
        run<Quantize<C>>(level_, {x + begin, &scales.of[b], codes, residual.after, nullptr, 1, blocks.size, {}});
      else
        nonfinite += quantize_nonfinite<C>({x + begin, blocks.valid(b), residual, codes, nullptr, ElementType::f32},
                                           scales.of[b]);
    }
    return nonfinite;
  }

  [[gnu::noinline]] std::uint64_t encode_padded(const Piece& piece, const Place& at) const {
    PaddedBuffer data, before, after, codes;
    const Padding padding(block_, piece.count);
    padding.spread(8 * static_cast<int>(element_bytes(type_)), at.data, data.bytes);
    Place place{data.bytes, {}, at.params, codes.bytes};
    if (at.residual) {
      padding.spread(32, at.residual.before, before.bytes);
      place.residual = {before.floats(), after.floats()};
    }
    const std::uint64_t nonfinite = encode({piece.blocks, padding.padded_block, &padding}, place);
    padding.collect(C::bits, codes.bytes, at.codes);
    clear_last_nibble<C>(piece.count, at.codes);
    if (at.residual) padding.collect(32, after.bytes, at.residual.after);
    return nonfinite;
  }

  const C& codec_;
  Level level_;
  ElementType type_;
  std::size_t block_;
};

}  // namespace tightwire::host
