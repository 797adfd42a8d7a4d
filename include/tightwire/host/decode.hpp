#pragma once
#include <cstddef>
#include <cstring>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/blocks.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/packing.hpp>

namespace tightwire::host {

/// A slice: wire -> a buffer.
template <BlockCodec C, ElementType Type>
struct Decode {
  struct Job {
    const std::byte* params;
    const std::byte* codes;
    std::byte* out;
    Blocks blocks;
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;
    const std::size_t number = job.blocks.number();
    for (std::size_t b = 0; b < number; ++b) {
      typename C::Param param{};
      std::memcpy(&param, job.params + b * kParamBytes<C>, kParamBytes<C>);
      const typename C::Scale scale = C::scale(param);
      const std::size_t begin = job.blocks.begin(b);
      const std::size_t count = job.blocks.elements(b);
      const std::byte* codes = job.codes + code_bytes(C::bits, begin);
      std::byte* out = job.out + begin * element_bytes(Type);
      std::size_t i = 0;
      for (; i + 4 * W <= count; i += 4 * W) group<W>(codes + i * C::bits / 8, scale, out + i * element_bytes(Type));
      if (i == count) continue;
      Rest rest_codes{}, rest_out;
      std::memcpy(rest_codes.bytes, codes + i * C::bits / 8, code_bytes(C::bits, count - i));
      group<W>(rest_codes.bytes, scale, rest_out.bytes);
      std::memcpy(out + i * element_bytes(Type), rest_out.bytes, (count - i) * element_bytes(Type));
    }
  }

 private:
  template <int W>
  TIGHTWIRE_INLINE static void group(const std::byte* from, typename C::Scale scale, std::byte* out) {
    Lanes<int, W> codes[4];
    Lanes<float, W> values[4];
    unpack<C::bits, W>(from, codes);
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) values[j] = Arithmetic<C, W>::value(codes[j], scale);
    store<Type, W>(values, out, 0);
  }
};

template <BlockCodec C>
void decode(const C& codec, Level level, ElementType type, const std::byte* wire, std::size_t count, void* out) {
  const auto with = [&]<class Kernel>(Kernel) {
    run<Kernel>(level, {wire,
                        wire + layout(codec, count).codes_at,
                        static_cast<std::byte*>(out),
                        {count, static_cast<std::size_t>(codec.block)}});
  };
  switch (type) {
    case ElementType::bf16: return with(Decode<C, ElementType::bf16>{});
    case ElementType::f16: return with(Decode<C, ElementType::f16>{});
    default: return with(Decode<C, ElementType::f32>{});
  }
}

}  // namespace tightwire::host
