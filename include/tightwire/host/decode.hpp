#pragma once
#include <cstddef>
#include <cstring>

#include <tightwire/coder.hpp>
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
    bool past_cache;
    Blocks blocks;
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = given;
    const std::size_t number = job.blocks.number();
    const bool past_cache = Type == ElementType::f32 && job.past_cache && is_aligned(job.out);
    for (std::size_t b = 0; b < number; ++b) {
      typename C::Param param{};
      std::memcpy(&param, job.params + b * kParamBytes<C>, kParamBytes<C>);
      const typename C::Scale scale = C::scale(param);
      const std::size_t begin = job.blocks.begin(b);
      const std::size_t count = job.blocks.elements(b);
      const std::byte* codes = job.codes + code_bytes(C::bits, begin);
      std::byte* out = job.out + begin * element_bytes(Type);
      Rest rest_codes{}, rest_out;
      for (std::size_t i = 0; i < count; i += 4 * W) {
        const std::byte* from = codes + i * C::bits / 8;
        std::byte* to = out + i * element_bytes(Type);
        const std::size_t left = count - i;
        if (left >= 4 * W) {
          group<W>(from, scale, past_cache, to);
          continue;
        }
        std::memcpy(rest_codes.bytes, from, code_bytes(C::bits, left));
        group<W>(rest_codes.bytes, scale, false, rest_out.bytes);
        std::memcpy(to, rest_out.bytes, left * element_bytes(Type));
      }
    }
    if (past_cache) detail::order_stores_past_cache();
  }

 private:
  template <int W>
  TIGHTWIRE_INLINE static void group(const std::byte* from, typename C::Scale scale, bool past_cache, std::byte* out) {
    Lanes<int, W> codes[4];
    Lanes<float, W> values[4];
    unpack<C::bits, W>(from, codes);
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) values[j] = Arithmetic<C, W>::value(codes[j], scale);
    if (past_cache) {
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < 4; ++j) store_past_cache(values[j], reinterpret_cast<float*>(out) + W * j);
    } else {
      store<Type, W>(values, out, 0);
    }
  }
};

template <BlockCodec C>
void decode(const C& codec, Level level, ElementType type, const Coder::Decode& job) {
  const auto with = [&]<class Kernel>(Kernel) {
    run<Kernel>(level, {job.wire,
                        job.wire + layout(codec, job.count).codes_at,
                        static_cast<std::byte*>(job.out),
                        job.past_cache,
                        {job.count, static_cast<std::size_t>(codec.block)}});
  };
  switch (type) {
    case ElementType::bf16: return with(host::Decode<C, ElementType::bf16>{});
    case ElementType::f16: return with(host::Decode<C, ElementType::f16>{});
    default: return with(host::Decode<C, ElementType::f32>{});
  }
}

}  // namespace tightwire::host
