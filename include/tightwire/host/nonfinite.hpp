#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/host/packing.hpp>

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

/// A block with a NaN or an infinity in it, or with a value that the type of the buffer cannot hold.
struct NonFiniteBlock {
  const float* x;
  std::size_t count;
  Residual residual;  ///< where the difference goes
  std::byte* codes;   ///< null: not wanted
  float* values;      ///< where the decoded values go, `x` if you like; null: not wanted
  ElementType type;   ///< to which decoded values are rounded
};

/// What decodes to a finite value is treated as ever; elsewhere the residual stays as it was before this block, as if
/// the step had not happened. Returns the number of non-finite elements. Rare, so one element after the other.
template <BlockCodec C>
[[gnu::noinline, gnu::cold]] std::uint64_t quantize_nonfinite(const NonFiniteBlock& block, typename C::Scale scale) {
  std::uint64_t nonfinite = 0;
  const bool finite_input = std::all_of(block.x, block.x + block.count, is_finite);
  for (std::size_t i = 0; i < block.count; ++i) {
    const float x = block.x[i];
    const int code = C::code(x, scale);
    const float value = rounded(block.type, C::value(code, scale));
    // A quantized block with one NaN decodes to NaN all over; only what caused it is counted.
    if (!is_finite(x) || (!is_finite(value) && (finite_input || kParamBytes<C> == 0))) ++nonfinite;
    if (block.residual) block.residual.after[i] = is_finite(value) ? x - value : block.residual.before[i];
    if (block.codes != nullptr) put_code<C::bits>(code, i, block.codes);
    if (block.values != nullptr) block.values[i] = value;
  }
  return nonfinite;
}

}  // namespace tightwire::host
