#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/codec/concept.hpp>
#include <tightwire/cuda/access.cuh>
#include <tightwire/cuda/scales.cuh>
#include <tightwire/cuda/workspace.cuh>

namespace tightwire::cuda::detail {

template <BlockCodec C>
__device__ float value_of(int code, const typename C::Scale& scale) {
  const float value = ArithmeticOf<C>::value(code, scale);
  if constexpr (host::kParamBytes<C> == 0)
    return value;  // the element itself, on which there is no arithmetic
  else
    return one_nan(value);
}
/// A code as it comes back from the wire.
template <BlockCodec C>
__device__ int as_sent(int code) {
  if constexpr (C::bits < 8)
    return static_cast<int>(static_cast<std::uint32_t>(code) << (32 - C::bits)) >> (32 - C::bits);
  else
    return code;
}
template <BlockCodec C>
__device__ int code_of(float x, const typename C::Scale& scale, const std::uint16_t* noise) {
  if constexpr (requires { ArithmeticOf<C>::code(x, scale, 0.0f); })
    if (noise != nullptr) return ArithmeticOf<C>::code(x, scale, tightwire::detail::centered(static_cast<int>(*noise)));
  return ArithmeticOf<C>::code(x, scale);
}

/// How a tile is encoded.
struct Put {
  const std::uint16_t* noise;  ///< of the tile
  ElementType rounded_to;      ///< values, before the difference is taken
  bool codes;                  ///< wanted
};

/// Codes and differences of a tile under its scales, and values in place of its elements. Returns how many elements of
/// this thread's are not finite.
template <BlockCodec C>
__device__ unsigned quantize(const Workspace<C>& work, const Shape& shape, unsigned count, const Put& put) {
  unsigned nonfinite = 0;
#pragma unroll 1
  for (unsigned first = threadIdx.x * kGranule; first < count; first += kThreads * kGranule) {
    const unsigned valid = count - first < kGranule ? count - first : kGranule;
    const unsigned p = first / shape.part;
    const typename C::Scale scale = work.scales[p];
    const bool finite_input = work.nonfinite_input[p] == 0;
    // In a part that decodes to nothing finite all codes are that of 0, so that its bytes do not depend on the device.
    const int code_of_zero = ArithmeticOf<C>::code(0.0f, scale);
    const bool lost = host::kParamBytes<C> != 0 && !work.stats[p].finite() &&
                      !is_finite(value_of<C>(as_sent<C>(code_of_zero), scale));
    int codes[kGranule];
    float values[kGranule], differences[kGranule];
    load_floats(work.x + first, differences);
#pragma unroll
    for (unsigned k = 0; k < kGranule; ++k) {
      const float x = differences[k];
      codes[k] = as_sent<C>(lost ? code_of_zero
                                 : code_of<C>(x, scale, put.noise != nullptr ? put.noise + first + k : nullptr));
      values[k] = rounded(put.rounded_to, value_of<C>(codes[k], scale));
      differences[k] = is_finite(values[k]) ? x - values[k] : tightwire::detail::from_bits(kUnchanged);
      if (k >= valid)
        codes[k] = 0;
      else if (!is_finite(x) || (!is_finite(values[k]) && (finite_input || host::kParamBytes<C> == 0)))
        ++nonfinite;
    }
    if (put.codes) put_codes<C::bits>(codes, work.codes + static_cast<std::size_t>(first) * C::bits / 8);
    store_floats(work.x + first, values);
    store_floats(work.differences + first, differences);
  }
  return nonfinite;
}

/// Values of eight elements of an encoded slice.
template <BlockCodec C>
__device__ void decode_granule(const Shape& shape, const std::byte* wire, std::size_t i, unsigned valid,
                               float (&values)[kGranule]) {
  constexpr std::size_t kShared = host::kSharedBytes<C>, kParam = host::kParamBytes<C>;
  const std::byte* const params = wire + i / shape.block * (kShared + shape.parts_per_block * kParam);
  SharedOf<C> shared{};
  typename C::Param param{};
  if constexpr (kShared != 0) shared = load_object<SharedOf<C>>(params);
  if constexpr (kParam != 0)
    param = load_object<typename C::Param>(params + kShared + i % shape.block / shape.part * kParam);
  const typename C::Scale scale = scale_of<C>(param, shared);
  int codes[kGranule];
  if constexpr (base_of<C> != 0)
    get_digits<base_of<C>>(
        wire + shape.codes_at + i / shape.block * tightwire::detail::digit_bytes(base_of<C>, shape.block),
        static_cast<unsigned>(i % shape.block), valid, codes);
  else
    get_codes<C::bits>(wire + shape.codes_at + i * C::bits / 8, valid, codes);
#pragma unroll
  for (unsigned k = 0; k < kGranule; ++k) values[k] = value_of<C>(codes[k], scale);
}

}  // namespace tightwire::cuda::detail
