#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/blocks.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/packing.hpp>

namespace tightwire::host {

/// Where the results of a block go; null: not wanted.
struct Quantized {
  std::byte* codes;
  float* difference;  ///< what decoded values miss of x
  float* values;      ///< decoded
  bool difference_past_cache;
  bool codes_past_cache;
};

/// Codes of a group -> wire.
template <int Bits, int W>
TIGHTWIRE_INLINE void put_codes(const Lanes<int, W> (&codes)[4], std::byte* wire, bool past_cache) {
  constexpr int kBytes = 4 * W * Bits / 8;
  if (kBytes % 16 != 0 || !past_cache) {
    pack<Bits, W>(codes, wire);
  } else {
    Rest group;
    pack<Bits, W>(codes, group.bytes);
    detail::copy_past_cache(group.bytes, wire, kBytes);
  }
}
/// Encoded slices lie on multiples of 16 bytes, which is enough.
inline bool codes_aligned(const std::byte* codes) { return reinterpret_cast<std::uintptr_t>(codes) % 16 == 0; }

template <BlockCodec C, int W>
TIGHTWIRE_INLINE void quantize_group(const float* from, typename C::Scale scale, const Quantized& to) {
  using A = Arithmetic<C, W>;
  Lanes<float, W> x[4];
  typename A::Encoded encoded[4];
  load<W>(from, x);
  TIGHTWIRE_UNROLL(4)
  for (int k = 0; k < 4; ++k) encoded[k] = A::encode(x[k], scale);
  if (to.difference != nullptr) {
    if (to.difference_past_cache) {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) store_past_cache(A::difference(x[k], encoded[k], scale), to.difference + W * k);
    } else {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) A::difference(x[k], encoded[k], scale).store(to.difference + W * k);
    }
  }
  if (to.values != nullptr) {
    TIGHTWIRE_UNROLL(4)
    for (int k = 0; k < 4; ++k) A::decoded(encoded[k], scale).store(to.values + W * k);
  }
  if (to.codes != nullptr) {
    Lanes<int, W> codes[4];
    TIGHTWIRE_UNROLL(4)
    for (int k = 0; k < 4; ++k) codes[k] = A::codes(encoded[k]);
    put_codes<C::bits, W>(codes, to.codes, to.codes_past_cache);
  }
}

/// One block of x under a known scale -> codes, values, residual. x has room for whole groups.
template <BlockCodec C, int W>
TIGHTWIRE_INLINE void quantize(const float* x, std::size_t count, typename C::Scale scale, Quantized to,
                               const Upcoming& upcoming = {}) {
  to.difference_past_cache = to.difference_past_cache && is_aligned(to.difference);
  to.codes_past_cache = to.codes_past_cache && codes_aligned(to.codes);
  Rest codes, difference, values;
  for (std::size_t i = 0; i < count; i += 4 * W) {
    upcoming.ask<4 * W>(i);
    Quantized group{to.codes != nullptr ? to.codes + i * C::bits / 8 : nullptr,
                    to.difference != nullptr ? to.difference + i : nullptr,
                    to.values != nullptr ? to.values + i : nullptr, to.difference_past_cache, to.codes_past_cache};
    const std::size_t left = count - i;
    if (left < 4 * W) group = {codes.bytes, difference.floats(), values.floats(), false, false};
    quantize_group<C, W>(x + i, scale, group);
    if (left >= 4 * W) continue;
    if (to.codes != nullptr) {
      // A last byte with one code of 4 bits has padding of its own.
      if (C::bits == 4 && left % 2 != 0) codes.bytes[left / 2] &= std::byte{15};
      std::memcpy(to.codes + i * C::bits / 8, codes.bytes, code_bytes(C::bits, left));
    }
    if (to.difference != nullptr) std::memcpy(to.difference + i, difference.bytes, left * sizeof(float));
    if (to.values != nullptr) std::memcpy(to.values + i, values.bytes, left * sizeof(float));
  }
}

}  // namespace tightwire::host
