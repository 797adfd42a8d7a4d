#pragma once
#include <cstddef>
#include <cstring>

#include <tightwire/codec/stat.hpp>
#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/blocks.hpp>
#include <tightwire/host/elements.hpp>

namespace tightwire::host {

/// Magnitude from which fp32 rounds to infinity in a buffer of the type.
constexpr int overflow_bits(ElementType type) {
  return type == ElementType::bf16 ? 0x7f7f8000 : type == ElementType::f16 ? 0x477ff000 : 0x7f800000;
}

/// One block of fp32 -> a buffer of the type. x has room for whole groups.
template <ElementType Type, int W>
TIGHTWIRE_INLINE void store_block(const float* x, std::byte* out, std::size_t count) {
  if constexpr (Type == ElementType::f32) {
    std::memcpy(out, x, count * sizeof(float));
  } else {
    Lanes<float, W> group[4];
    std::size_t i = 0;
    for (; i + 4 * W <= count; i += 4 * W) {
      load<W>(x + i, group);
      store<Type, W>(group, out, i);
    }
    if (i == count) return;
    Rest rest;
    load<W>(x + i, group);
    store<Type, W>(group, rest.bytes, 0);
    std::memcpy(out + i * element_bytes(Type), rest.bytes, (count - i) * element_bytes(Type));
  }
}

/// values := what the type holds of them; difference := x - values, unless null.
template <ElementType Type, int W>
TIGHTWIRE_INLINE void round_block(const float* x, float* values, float* difference, std::size_t count) {
  for (std::size_t i = 0; i < count; i += 4 * W) {
    Lanes<float, W> from[4], value[4];
    load<W>(values + i, value);
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) value[j] = from_16_bits<Type>(to_16_bits<Type>(value[j]));
    store<W>(value, values + i);
    if (difference == nullptr) continue;
    load<W>(x + i, from);
    if (i + 4 * W <= count) {
      store_difference<W>(from, value, difference + i);
    } else {
      Rest rest;
      store_difference<W>(from, value, rest.floats());
      std::memcpy(difference + i, rest.bytes, (count - i) * sizeof(float));
    }
  }
}

/// The largest magnitude of a block. x has room for whole groups, and repeats its last element there.
template <int W>
TIGHTWIRE_INLINE int largest_bits(const float* x, std::size_t count) {
  Statistic<AbsMax, W> statistic;
  for (std::size_t i = 0; i < count; i += 4 * W) {
    Lanes<float, W> group[4];
    load<W>(x + i, group);
    statistic.add(group);
  }
  return statistic.result().bits;
}

}  // namespace tightwire::host
