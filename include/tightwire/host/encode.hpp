#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/coder.hpp>
#include <tightwire/host/blocks.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/gather.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/host/packing.hpp>
#include <tightwire/host/quantize.hpp>

namespace tightwire::host {

/// What is known of a block before its codes are.
template <BlockCodec C>
struct Found {
  typename C::Scale scale;
  bool finite;  ///< input and decoded values
};
/// `params`: where the Param of the block goes; null: not wanted.
template <BlockCodec C>
TIGHTWIRE_INLINE Found<C> find_scale(typename C::Stat stat, std::byte* params) {
  const typename C::Param param = C::param(stat);
  if (params != nullptr) std::memcpy(params, &param, kParamBytes<C>);
  return {C::scale(param), stat.finite()};
}

/// A slice: data + residual -> wire. The next block is gathered before this one is quantized, so that nothing waits for
/// the scale of a block, which comes out of a chain of dependent instructions.
template <BlockCodec C, ElementType Type>
struct Encode {
  struct Job {
    const std::byte* data;
    Residual residual;
    std::byte* params;
    std::byte* codes;
    bool past_cache;  ///< of codes
    Blocks blocks;
  };

  template <int W>
  TIGHTWIRE_INLINE static std::uint64_t run(const Job& given) {
    const Job job = given;  // a copy that no store can alias, so that its members stay in registers
    const std::size_t number = job.blocks.number();
    std::uint64_t nonfinite = 0;
    TwoBlocks x;
    Found<C> next{}, found{};
    for (std::size_t ahead = 0; ahead <= number; ++ahead, found = next) {
      if (ahead < number) next = gathered<W>(job, ahead, x);
      if (ahead == 0) continue;
      const std::size_t b = ahead - 1;
      const std::size_t begin = job.blocks.begin(b);
      const std::size_t count = job.blocks.elements(b);
      const Residual residual = advanced(job.residual, begin);
      std::byte* codes = job.codes + code_bytes(C::bits, begin);
      const float* block = x.of(b, job.blocks.size);
      if (found.finite) [[likely]]
        quantize<C, W>(block, count, found.scale, {codes, residual.after, nullptr, residual.past_cache, job.past_cache},
                       upcoming(job, b + 2));
      else
        nonfinite += quantize_nonfinite<C>({block, count, residual, codes, nullptr, ElementType::f32}, found.scale);
    }
    if (job.residual.past_cache || job.past_cache) detail::order_stores_past_cache();
    return nonfinite;
  }

 private:
  TIGHTWIRE_INLINE static Upcoming upcoming(const Job& job, std::size_t b) {
    const std::size_t begin = job.blocks.begin(b);
    Upcoming soon;
    soon.data(job.data, begin, element_bytes(Type));
    soon.sender(job.residual.before, begin);
    return soon;
  }
  template <int W>
  TIGHTWIRE_INLINE static Found<C> gathered(const Job& job, std::size_t b, TwoBlocks& x) {
    const std::size_t begin = job.blocks.begin(b);
    return find_scale<C>(
        gather<typename C::Stat, Type, W>(job.data + begin * element_bytes(Type), advanced(job.residual, begin).before,
                                          x.of(b, job.blocks.size), job.blocks.elements(b)),
        job.params + b * kParamBytes<C>);
  }
};

template <BlockCodec C>
std::uint64_t encode(const C& codec, Level level, ElementType type, const Coder::Encode& job) {
  if (job.count == 0) return 0;
  clear_padding(codec, job.count, job.wire);
  const auto with = [&]<class Kernel>(Kernel) {
    return run<Kernel>(level, {static_cast<const std::byte*>(job.data),
                               job.residual,
                               job.wire,
                               job.wire + layout(codec, job.count).codes_at,
                               job.past_cache,
                               {job.count, static_cast<std::size_t>(codec.block)}});
  };
  switch (type) {
    case ElementType::bf16: return with(Encode<C, ElementType::bf16>{});
    case ElementType::f16: return with(Encode<C, ElementType::f16>{});
    default: return with(Encode<C, ElementType::f32>{});
  }
}

}  // namespace tightwire::host
