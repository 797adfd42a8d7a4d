#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/codec/stat.hpp>
#include <tightwire/host/layout.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

constexpr bool is_finite(float x) { return (detail::to_bits(x) & detail::kMagnitudeMask) < detail::kInfinityBits; }
/// As a buffer of the type holds it.
constexpr float rounded(ElementType type, float x) {
  switch (type) {
    case ElementType::bf16: return detail::from_bf16(detail::to_bf16(x));
    case ElementType::f16: return detail::from_f16(detail::to_f16(x));
    default: return x;
  }
}

/// `noise`: null for rounding to nearest, which is all that some codecs know.
template <BlockCodec C>
constexpr int code_of(float x, const typename C::Scale& scale, const float* noise) {
  if constexpr (requires { ArithmeticOf<C>::code(x, scale, 0.0f); })
    if (noise != nullptr) return ArithmeticOf<C>::code(x, scale, *noise);
  return ArithmeticOf<C>::code(x, scale);
}

/// Whether a part that is not finite decodes to nothing finite: then all its codes are that of 0, so that its bytes do
/// not depend on what arithmetic of a device makes of the sign of a NaN.
template <BlockCodec C>
constexpr bool decodes_to_nothing(const typename C::Scale& scale) {
  return kParamBytes<C> != 0 && !is_finite(ArithmeticOf<C>::value(ArithmeticOf<C>::code(0.0f, scale), scale));
}

/// See NonFiniteJob. What decodes to a finite value is treated as ever; elsewhere the residual stays as it was before
/// this part, as if the step had not happened. Returns the number of non-finite elements. Rare, so one element after
/// the other.
template <BlockCodec C>
[[gnu::noinline, gnu::cold]] std::uint64_t quantize_nonfinite(const NonFiniteJob& part) {
  const auto& scale = *static_cast<const typename C::Scale*>(part.scale);
  std::uint64_t nonfinite = 0;
  const bool finite_input = std::all_of(part.x, part.x + part.count, is_finite);
  const bool lost = decodes_to_nothing<C>(scale);
  for (std::size_t i = 0; i < part.count; ++i) {
    const float x = part.x[i];
    const int code = lost ? ArithmeticOf<C>::code(0.0f, scale)
                          : code_of<C>(x, scale, part.noise != nullptr ? part.noise + i : nullptr);
    const float value = rounded(part.type, ArithmeticOf<C>::value(code, scale));
    // A quantized block with one NaN decodes to NaN all over; only what caused it is counted.
    if (!is_finite(x) || (!is_finite(value) && (finite_input || kParamBytes<C> == 0))) ++nonfinite;
    if (part.residual) part.residual.after[i] = is_finite(value) ? x - value : part.residual.before[i];
    if (part.codes != nullptr) std::memcpy(part.codes + i * kCodeBytes<C>, &code, kCodeBytes<C>);
    if (part.values != nullptr) part.values[i] = value;
  }
  return nonfinite;
}

/// Counts the elements of a sum that a buffer cannot hold, and gives all NaNs the same bits, which otherwise depend on
/// which operand of an addition comes first.
[[gnu::noinline, gnu::cold]] inline std::uint64_t settle_overflows(float* x, std::size_t count, int overflow) {
  std::uint64_t overflows = 0;
  for (float* at = x; at < x + count; ++at) {
    const int magnitude = AbsMax::key(*at);
    if (magnitude >= overflow) ++overflows;
    if (magnitude > static_cast<int>(detail::kInfinityBits)) *at = detail::from_bits(0x7fc00000u);
  }
  return overflows;
}

/// Gives x an infinity where x + added is beyond the range of a buffer. `added` may be null.
[[gnu::noinline, gnu::cold]] inline void overflow_to_infinity(float* x, const float* added, std::size_t count,
                                                              int overflow) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = added != nullptr ? x[i] + added[i] : x[i];
    const int magnitude = AbsMax::key(sum);
    if (magnitude >= overflow && magnitude < static_cast<int>(detail::kInfinityBits))
      x[i] = detail::from_bits(detail::kInfinityBits | (detail::to_bits(sum) & detail::kSignMask));
  }
}

}  // namespace tightwire::host
