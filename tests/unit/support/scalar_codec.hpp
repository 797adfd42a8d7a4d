#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <tightwire/element.hpp>

// The built-in codecs once more, from docs/wire-format.md and not from the library: one element after the other, with
// divisions, nearbyint and double where the library has bit tricks. Slow and plain on purpose.

namespace scalar {

using tightwire::ElementType;

inline std::uint32_t bits_of(float x) {
  std::uint32_t b = 0;
  std::memcpy(&b, &x, sizeof b);
  return b;
}
inline float float_of(std::uint32_t b) {
  float x = 0;
  std::memcpy(&x, &b, sizeof x);
  return x;
}
inline bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
inline bool is_finite(float x) { return (bits_of(x) & 0x7fffffffu) < 0x7f800000u; }

inline std::uint16_t to_bf16(float x) {
  const std::uint32_t high = bits_of(x) >> 16, low = bits_of(x) & 0xffffu;
  if (is_nan(x)) return static_cast<std::uint16_t>(high | 0x40u);
  return static_cast<std::uint16_t>(high + (low > 0x8000u || (low == 0x8000u && high % 2 == 1) ? 1 : 0));
}
inline float from_bf16(std::uint16_t h) { return float_of(std::uint32_t{h} << 16); }

/// Through double, which no mode of flushing touches at these magnitudes.
inline std::uint16_t to_f16(float x) {
  const std::uint32_t sign = bits_of(x) >> 16 & 0x8000u, magnitude = bits_of(x) & 0x7fffffffu;
  if (is_nan(x)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent > 15) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (exponent < -26) return static_cast<std::uint16_t>(sign);
  const double exact = std::ldexp(static_cast<double>((magnitude & 0x7fffffu) | 0x800000u), exponent - 23);
  // Units of the last place, of a subnormal or of the binade; the carry out of a mantissa is the next exponent.
  const double units = std::nearbyint(std::ldexp(exact, exponent < -14 ? 24 : 10 - exponent));
  const int base = exponent < -14 ? 0 : (exponent + 14) * 1024;
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(base + static_cast<int>(units)));
}
inline float from_f16(std::uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const std::uint32_t sign = std::uint32_t{h} >> 15 << 31;
  if (exponent == 31) return float_of(sign | 0x7f800000u | static_cast<std::uint32_t>(mantissa) << 13);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return float_of(sign | bits_of(static_cast<float>(magnitude)));
}

inline float load(ElementType type, const std::byte* at) {
  float x = 0;
  std::uint16_t h = 0;
  if (type == ElementType::f32) return std::memcpy(&x, at, 4), x;
  std::memcpy(&h, at, 2);
  return type == ElementType::bf16 ? from_bf16(h) : from_f16(h);
}
inline void store(ElementType type, float x, std::byte* at) {
  if (type == ElementType::f32) {
    std::memcpy(at, &x, 4);
    return;
  }
  const std::uint16_t h = type == ElementType::bf16 ? to_bf16(x) : to_f16(x);
  std::memcpy(at, &h, 2);
}
inline float rounded(ElementType type, float x) {
  std::byte buffer[4];
  store(type, x, buffer);
  return load(type, buffer);
}

inline float saturated(float x, float largest) {
  return is_finite(x) && std::fabs(x) > largest ? std::copysign(largest, x) : x;
}

enum class Kind { dense, bf16, fp16, int8, int4 };

struct Codec {
  Kind kind;
  std::size_t block;

  bool quantized() const { return kind == Kind::int8 || kind == Kind::int4; }
  std::size_t bits() const { return kind == Kind::dense ? 32 : kind == Kind::int8 ? 8 : kind == Kind::int4 ? 4 : 16; }
  std::size_t codes_at(std::size_t count) const {
    return quantized() ? ((count + block - 1) / block * 2 + 15) / 16 * 16 : 0;
  }
  std::size_t wire_bytes(std::size_t count) const {
    return codes_at(count) + ((count * bits() + 7) / 8 + 15) / 16 * 16;
  }

  /// bf16 bits of the step; 0 for a block of zeros, NaN for one that is not finite.
  std::uint16_t param(std::span<const float> x) const {
    float largest = 0;
    for (const float element : x) {
      if (!is_finite(element)) return 0x7fc0;
      const std::uint32_t magnitude = bits_of(element) & 0x7fffffffu, so_far = bits_of(largest) & 0x7fffffffu;
      if (magnitude > so_far || (magnitude == so_far && bits_of(element) >> 31 == 1)) largest = element;
    }
    if ((bits_of(largest) & 0x7fffffffu) == 0) return 0;
    const float divisor = kind == Kind::int8 ? 127.0f : 8.0f;
    const std::uint32_t smallest_step = 0x0080, largest_step = bits_of(FLT_MAX / divisor) >> 16;
    const std::uint32_t step = to_bf16(float_of(bits_of(largest) & 0x7fffffffu) / divisor);
    const std::uint32_t limited = step < smallest_step ? smallest_step : step > largest_step ? largest_step : step;
    const bool negative = kind == Kind::int4 && bits_of(largest) >> 31 == 0;
    return static_cast<std::uint16_t>(limited | (negative ? 0x8000u : 0u));
  }

  std::uint32_t code(float x, std::uint16_t param) const {
    switch (kind) {
      case Kind::dense: return is_nan(x) ? 0x7fc00000u : bits_of(x);
      case Kind::bf16: return is_nan(x) ? 0x7fc0u : to_bf16(saturated(x, 0x1.fep127f));
      case Kind::fp16: return is_nan(x) ? 0x7e00u : to_f16(saturated(x, 65504.0f));
      default: break;
    }
    if (param == 0 || param == 0x7fc0) return 0;
    const float low = kind == Kind::int8 ? -127.0f : -8.0f, high = kind == Kind::int8 ? 127.0f : 7.0f;
    const float inverse = 1.0f / from_bf16(param);
    const float t = std::fmax(std::fmin(x * inverse, high), low);
    return static_cast<std::uint32_t>(static_cast<int>(std::nearbyint(t)));
  }
  float value(std::uint32_t code, std::uint16_t param) const {
    if (quantized() && (param & 0x7f80u) == 0x7f80u) return float_of(0x7fc00000u);  // a damaged step, whatever it holds
    switch (kind) {
      case Kind::dense: return float_of(code);
      case Kind::bf16: return from_bf16(static_cast<std::uint16_t>(code));
      case Kind::fp16: return from_f16(static_cast<std::uint16_t>(code));
      case Kind::int8: return static_cast<float>(static_cast<std::int8_t>(code)) * from_bf16(param);
      default: return static_cast<float>(static_cast<int>((code & 15) ^ 8) - 8) * from_bf16(param);
    }
  }
};

struct Encoded {
  std::vector<std::byte> wire;
  std::vector<float> values;    ///< decoded, as a buffer holds them
  std::vector<float> residual;  ///< after
  std::uint64_t nonfinite = 0;
};

inline Encoded encode(const Codec& codec, std::span<const float> given, std::span<const float> before,
                      ElementType type) {
  const std::size_t count = given.size();
  // Where the wire has the type of the buffer, what neither can hold is infinite.
  std::vector<float> in_range(given.begin(), given.end());
  if ((codec.kind == Kind::bf16 && type == ElementType::bf16) || (codec.kind == Kind::fp16 && type == ElementType::f16))
    for (float& element : in_range)
      if (!is_finite(rounded(type, element))) element = rounded(type, element);
  const std::span<const float> x = in_range;
  Encoded encoded{std::vector<std::byte>(codec.wire_bytes(count)), {}, {}, 0};
  std::byte* codes = encoded.wire.data() + codec.codes_at(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t b = i / codec.block;
    const auto elements = x.subspan(b * codec.block, std::min(codec.block, count - b * codec.block));
    std::uint16_t param = 0;
    if (codec.quantized()) {
      if (i % codec.block == 0) {
        param = codec.param(elements);
        std::memcpy(encoded.wire.data() + 2 * b, &param, 2);
      }
      std::memcpy(&param, encoded.wire.data() + 2 * b, 2);
    }
    const std::uint32_t code = codec.code(x[i], param);
    if (codec.bits() == 4)
      codes[i / 2] |= static_cast<std::byte>((code & 15) << 4 * (i % 2));
    else
      std::memcpy(codes + i * codec.bits() / 8, &code, codec.bits() / 8);
    const float value = rounded(type, codec.value(code, param));
    encoded.values.push_back(value);
    if (!before.empty()) encoded.residual.push_back(is_finite(value) ? x[i] - value : before[i]);
    bool blame = !is_finite(x[i]) || (!is_finite(value) && !codec.quantized());
    if (!is_finite(value) && codec.quantized()) {
      bool finite_block = true;
      for (const float element : elements) finite_block = finite_block && is_finite(element);
      blame = blame || finite_block;
    }
    if (blame) ++encoded.nonfinite;
  }
  return encoded;
}

inline std::vector<float> decode(const Codec& codec, std::span<const std::byte> wire, std::size_t count) {
  std::vector<float> x(count);
  const std::byte* codes = wire.data() + codec.codes_at(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t param = 0;
    if (codec.quantized()) std::memcpy(&param, wire.data() + 2 * (i / codec.block), 2);
    std::uint32_t code = 0;
    if (codec.bits() == 4)
      code = std::to_integer<std::uint32_t>(codes[i / 2]) >> 4 * (i % 2) & 15;
    else
      std::memcpy(&code, codes + i * codec.bits() / 8, codec.bits() / 8);
    x[i] = codec.value(code, param);
  }
  return x;
}

}  // namespace scalar
