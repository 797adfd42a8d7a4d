#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tightwire/detail/bits.hpp>

namespace tightwire {

/// Type of the elements of a gradient buffer. Arithmetic is always fp32. Values are part of the wire format.
enum class ElementType : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2 };

constexpr std::size_t element_bytes(ElementType type) { return type == ElementType::f32 ? 4 : 2; }
constexpr std::string_view to_string(ElementType type) {
  return type == ElementType::f32 ? "fp32" : type == ElementType::bf16 ? "bf16" : "fp16";
}

namespace detail {

/// bf16 is the upper half of an fp32. What is no NaN, rounded to nearest even. Bits in and out are 32 bits wide, so
/// that the same lines serve several lanes.
TIGHTWIRE_HD constexpr auto bf16_rounded(const auto& b) { return (b + 0x7fffu + ((b >> 16) & 1u)) >> 16; }
/// The same for any x: NaN stays NaN.
TIGHTWIRE_HD constexpr auto bf16_bits(const auto& x) {
  const auto b = to_bits(x);
  const auto nan = as_int(b & kMagnitudeMask) > static_cast<int>(kInfinityBits);
  return select(nan, (b >> 16) | 0x40u, bf16_rounded(b));
}
TIGHTWIRE_HD constexpr auto bf16_value(const auto& h) { return from_bits(h << 16); }

/// A magnitude below 65520 as IEEE binary16, nearest even. No fp32 subnormal is formed on the way, so flush-to-zero
/// modes do not change the result.
TIGHTWIRE_HD constexpr auto f16_magnitude(const auto& magnitude) {
  // Normal: rebias the exponent (127 -> 15), round at bit 13.
  const auto normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: one unit of fp16's last place is 2^-24, which is that of 0.5f.
  const auto subnormal = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  return select(as_int(magnitude) < 0x38800000, subnormal, normal);
}
/// The same for any x: beyond 65519.99 infinity, NaN stays NaN.
TIGHTWIRE_HD constexpr auto f16_bits(const auto& x) {
  const auto b = to_bits(x);
  const auto magnitude = b & kMagnitudeMask;
  const auto order = as_int(magnitude);
  auto h = select(order >= 0x477ff000, 0x7c00u, f16_magnitude(magnitude));
  h = select(order > static_cast<int>(kInfinityBits), 0x7e00u, h);
  return h | ((b >> 16) & 0x8000u);
}
TIGHTWIRE_HD constexpr auto f16_value(const auto& h) {
  const auto magnitude = h & 0x7fffu;
  const auto sign = (h & 0x8000u) << 16;
  const auto normal = (magnitude << 13) + 0x38000000u;
  const auto special = (magnitude << 13) | 0x7f800000u;
  const auto subnormal = to_bits(to_float(as_int(magnitude)) * 0x1p-24f);
  const auto order = as_int(magnitude);
  auto b = select(order < 0x400, subnormal, normal);
  b = select(order >= 0x7c00, special, b);
  return from_bits(b | sign);
}

TIGHTWIRE_HD constexpr std::uint16_t to_bf16(float x) { return static_cast<std::uint16_t>(bf16_bits(x)); }
TIGHTWIRE_HD constexpr float from_bf16(std::uint16_t h) { return bf16_value(std::uint32_t{h}); }
TIGHTWIRE_HD constexpr std::uint16_t to_f16(float x) { return static_cast<std::uint16_t>(f16_bits(x)); }
TIGHTWIRE_HD constexpr float from_f16(std::uint16_t h) { return f16_value(std::uint32_t{h}); }

/// How a buffer of one ElementType is read and written.
template <ElementType Type>
struct Element;
template <>
struct Element<ElementType::f32> {
  using Storage = float;
  TIGHTWIRE_HD static constexpr float load(float s) { return s; }
  TIGHTWIRE_HD static constexpr float store(float x) { return x; }
};
template <>
struct Element<ElementType::bf16> {
  using Storage = std::uint16_t;
  TIGHTWIRE_HD static constexpr float load(std::uint16_t s) { return from_bf16(s); }
  TIGHTWIRE_HD static constexpr std::uint16_t store(float x) { return to_bf16(x); }
};
template <>
struct Element<ElementType::f16> {
  using Storage = std::uint16_t;
  TIGHTWIRE_HD static constexpr float load(std::uint16_t s) { return from_f16(s); }
  TIGHTWIRE_HD static constexpr std::uint16_t store(float x) { return to_f16(x); }
};

}  // namespace detail
}  // namespace tightwire
