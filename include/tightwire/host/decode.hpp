#pragma once
#include <cstddef>
#include <cstring>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/packing.hpp>
#include <tightwire/host/pieces.hpp>

namespace tightwire::host {

/// Encoded blocks -> a buffer.
template <BlockCodec C, ElementType Type>
struct Decode {
  struct Job {
    const std::byte* params;
    const std::byte* codes;
    std::byte* out;
    std::size_t blocks;
    std::size_t block;  ///< a multiple of 64
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;
    for (std::size_t b = 0; b < job.blocks; ++b) {
      typename C::Param param{};
      std::memcpy(&param, job.params + b * kParamBytes<C>, kParamBytes<C>);
      const typename C::Scale scale = C::scale(param);
      for (std::size_t i = b * job.block; i < (b + 1) * job.block; i += 4 * W) {
        Lanes<int, W> codes[4];
        Lanes<float, W> values[4];
        unpack<C::bits, W>(job.codes + i * C::bits / 8, codes);
        TIGHTWIRE_UNROLL(4)
        for (int j = 0; j < 4; ++j) values[j] = Arithmetic<C, W>::value(codes[j], scale);
        store<Type, W>(values, job.out, i);
      }
    }
  }
};

template <BlockCodec C, ElementType Type>
class Decoder {
 public:
  Decoder(const C& codec, Level level) : codec_(codec), level_(level), block_(static_cast<std::size_t>(codec.block)) {}

  void operator()(const std::byte* wire, std::size_t count, std::byte* out) const {
    const std::byte* codes = wire + layout(codec_, count).codes_at;
    const std::size_t whole = block_ % kStep == 0 ? count / block_ : 0;
    if (whole != 0) run<Kernel>(level_, {wire, codes, out, whole, block_});
    for_each_piece(block_, count, [&](const Piece& piece) {
      if (piece.padded)
        decode_padded(piece, wire + piece.first_block * kParamBytes<C>, codes + code_bytes(C::bits, piece.at),
                      out + piece.at * element_bytes(Type));
    });
  }

 private:
  using Kernel = Decode<C, Type>;

  [[gnu::noinline]] void decode_padded(const Piece& piece, const std::byte* params, const std::byte* codes,
                                       std::byte* out) const {
    PaddedBuffer padded_codes, padded_out;
    const Padding padding(block_, piece.count);
    padding.spread(C::bits, codes, padded_codes.bytes);
    run<Kernel>(level_, {params, padded_codes.bytes, padded_out.bytes, piece.blocks, padding.padded_block});
    padding.collect(static_cast<int>(8 * element_bytes(Type)), padded_out.bytes, out);
  }

  const C& codec_;
  Level level_;
  std::size_t block_;
};

}  // namespace tightwire::host
