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

/// bf16 is the upper half of an fp32. Rounds to nearest even; NaN stays NaN.
TIGHTWIRE_HD constexpr std::uint16_t to_bf16(float x) {
  const std::uint32_t b = to_bits(x);
  const std::uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  const bool nan = (b & kMagnitudeMask) > kInfinityBits;
  return static_cast<std::uint16_t>(nan ? (b >> 16) | 0x40u : rounded);
}
TIGHTWIRE_HD constexpr float from_bf16(std::uint16_t h) { return from_bits(static_cast<std::uint32_t>(h) << 16); }

/// IEEE binary16, nearest even; beyond 65519.99 infinity, NaN stays NaN. No fp32 subnormal is formed on the way, so
/// flush-to-zero modes do not change the result.
TIGHTWIRE_HD constexpr std::uint16_t to_f16(float x) {
  const std::uint32_t b = to_bits(x);
  const std::uint32_t magnitude = b & kMagnitudeMask;
  const std::uint32_t sign = (b >> 16) & 0x8000u;
  // Normal: rebias the exponent (127 -> 15), round at bit 13.
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: one unit of fp16's last place is 2^-24, which is that of 0.5f.
  const std::uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t h = magnitude < 0x38800000u ? subnormal : normal;
  h = magnitude >= 0x477ff000u ? 0x7c00u : h;
  h = magnitude > kInfinityBits ? 0x7e00u : h;
  return static_cast<std::uint16_t>(h | sign);
}
TIGHTWIRE_HD constexpr float from_f16(std::uint16_t h) {
  const std::uint32_t magnitude = h & 0x7fffu;
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t normal = (magnitude << 13) + 0x38000000u;
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;
  const std::uint32_t subnormal = to_bits(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f);
  std::uint32_t b = magnitude < 0x400u ? subnormal : normal;
  b = magnitude >= 0x7c00u ? special : b;
  return from_bits(b | sign);
}

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
