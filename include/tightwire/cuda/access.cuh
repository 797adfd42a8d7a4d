#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tightwire/cuda/job.cuh>
#include <tightwire/detail/digits.hpp>
#include <tightwire/element.hpp>

// Between memory and shared memory, where a tile lives: 16 bytes to an access where addresses allow it, and right at
// any address. What is not aligned goes one by one, in loops that are small rather than fast.

namespace tightwire::cuda::detail {

__device__ inline bool is_aligned(const void* at, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}
/// An unsigned integer at any address.
template <class U>
__device__ U load_any(const std::byte* at) {
  if (is_aligned(at, sizeof(U))) return *reinterpret_cast<const U*>(at);
  U value = 0;
#pragma unroll 1
  for (unsigned i = 0; i < sizeof(U); ++i) value |= static_cast<U>(static_cast<U>(at[i]) << (8 * i));
  return value;
}
template <class U>
__device__ void store_any(std::byte* at, U value) {
  if (is_aligned(at, sizeof(U))) {
    *reinterpret_cast<U*>(at) = value;
    return;
  }
#pragma unroll 1
  for (unsigned i = 0; i < sizeof(U); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}
/// Any object of whole words, or of 1 or 2 bytes, at any address.
template <class T>
__device__ T load_object(const std::byte* at) {
  if constexpr (sizeof(T) <= 4) {
    using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                    std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
    static_assert(sizeof(Bits) == sizeof(T));
    return __builtin_bit_cast(T, load_any<Bits>(at));
  } else {
    struct Words {
      std::uint32_t word[sizeof(T) / 4];
    } words;
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 4; ++i) words.word[i] = load_any<std::uint32_t>(at + 4 * i);
    return __builtin_bit_cast(T, words);
  }
}

/// What arithmetic makes of a NaN depends on the device; on the wire and in buffers there is one.
__device__ inline float one_nan(float x) { return x == x ? x : tightwire::detail::from_bits(0x7fc00000u); }
__device__ inline bool is_finite(float x) {
  using namespace tightwire::detail;
  return (to_bits(x) & kMagnitudeMask) < kInfinityBits;
}

/// Eight floats on 16 bytes.
__device__ inline void load_floats(const float* at, float (&x)[kGranule]) {
  const float4 low = reinterpret_cast<const float4*>(at)[0], high = reinterpret_cast<const float4*>(at)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
__device__ inline void store_floats(float* at, const float (&x)[kGranule]) {
  reinterpret_cast<float4*>(at)[0] = {x[0], x[1], x[2], x[3]};
  reinterpret_cast<float4*>(at)[1] = {x[4], x[5], x[6], x[7]};
}
/// Eight integers of 16 bits on 16 bytes.
__device__ inline void load_halves(const std::byte* at, std::uint32_t (&h)[kGranule]) {
  const uint4 all = *reinterpret_cast<const uint4*>(at);
  h[0] = all.x & 0xffffu, h[1] = all.x >> 16, h[2] = all.y & 0xffffu, h[3] = all.y >> 16;
  h[4] = all.z & 0xffffu, h[5] = all.z >> 16, h[6] = all.w & 0xffffu, h[7] = all.w >> 16;
}
__device__ inline void store_halves(std::byte* at, const std::uint32_t (&h)[kGranule]) {
  *reinterpret_cast<uint4*>(at) = {h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16, h[6] | h[7] << 16};
}

/// Of a buffer of a 16-bit type.
__device__ inline float widened(ElementType type, std::uint32_t h) {
  return type == ElementType::bf16 ? tightwire::detail::bf16_value(h) : tightwire::detail::f16_value(h);
}
__device__ inline std::uint32_t narrowed(ElementType type, float x) {
  return type == ElementType::bf16 ? tightwire::detail::bf16_bits(x) : tightwire::detail::f16_bits(x);
}
__device__ inline float rounded(ElementType type, float x) {
  return type == ElementType::f32 ? x : widened(type, narrowed(type, x));
}

/// `whole(first)` for granules, where that is possible; `one(i)` for the elements that remain.
template <class Whole, class One>
__device__ void transfer(unsigned count, bool by_granules, const Whole& whole, const One& one) {
  const unsigned end = by_granules ? count / kGranule * kGranule : 0;
#pragma unroll 1
  for (unsigned first = threadIdx.x * kGranule; first < end; first += kThreads * kGranule) whole(first);
#pragma unroll 1
  for (unsigned i = end + threadIdx.x; i < count; i += kThreads) one(i);
}

/// A tile of a buffer -> shared memory, with zeros to the end of its last granule.
__device__ inline void load_elements(float* x, unsigned count, ElementType type, const std::byte* data) {
  transfer(
      count, is_aligned(data, 16),
      [&](unsigned first) {
        float element[kGranule];
        if (type == ElementType::f32) {
          load_floats(reinterpret_cast<const float*>(data) + first, element);
        } else {
          std::uint32_t h[kGranule];
          load_halves(data + 2 * first, h);
#pragma unroll
          for (unsigned k = 0; k < kGranule; ++k) element[k] = widened(type, h[k]);
        }
        store_floats(x + first, element);
      },
      [&](unsigned i) {
        x[i] = type == ElementType::f32 ? tightwire::detail::from_bits(load_any<std::uint32_t>(data + 4 * i))
                                        : widened(type, load_any<std::uint16_t>(data + 2 * i));
      });
  if (count + threadIdx.x < (count + kGranule - 1) / kGranule * kGranule) x[count + threadIdx.x] = 0.0f;
}
/// Shared memory -> a tile of a buffer. Of NaNs there is one.
__device__ inline void store_elements(const float* x, unsigned count, ElementType type, std::byte* out) {
  transfer(
      count, is_aligned(out, 16),
      [&](unsigned first) {
        float element[kGranule];
        load_floats(x + first, element);
        if (type == ElementType::f32) {
          store_floats(reinterpret_cast<float*>(out) + first, element);
        } else {
          std::uint32_t h[kGranule];
#pragma unroll
          for (unsigned k = 0; k < kGranule; ++k) h[k] = narrowed(type, element[k]);
          store_halves(out + 2 * first, h);
        }
      },
      [&](unsigned i) {
        if (type == ElementType::f32)
          store_any(out + 4 * i, tightwire::detail::to_bits(x[i]));
        else
          store_any(out + 2 * i, static_cast<std::uint16_t>(narrowed(type, x[i])));
      });
}
__device__ inline void add_elements(float* x, unsigned count, const float* more) {
  transfer(
      count, is_aligned(more, 16),
      [&](unsigned first) {
        float element[kGranule], added[kGranule];
        load_floats(x + first, element);
        load_floats(more + first, added);
#pragma unroll
        for (unsigned k = 0; k < kGranule; ++k) element[k] += added[k];
        store_floats(x + first, element);
      },
      [&](unsigned i) { x[i] += more[i]; });
}

/// A difference that is to stay what it was before.
inline constexpr std::uint32_t kUnchanged = 0x7fc00001u;
/// Shared memory -> a tile of a residual.
__device__ inline void store_residual(const float* differences, unsigned count, const Feedback& residual) {
  using tightwire::detail::to_bits;
  const auto settled = [&](float difference, unsigned i) {
    return to_bits(difference) == kUnchanged ? residual.before[i] : difference;
  };
  transfer(
      count, is_aligned(residual.after, 16),
      [&](unsigned first) {
        float element[kGranule];
        load_floats(differences + first, element);
#pragma unroll
        for (unsigned k = 0; k < kGranule; ++k) element[k] = settled(element[k], first + k);
        store_floats(residual.after + first, element);
      },
      [&](unsigned i) { residual.after[i] = settled(differences[i], i); });
}

/// Codes of eight elements, end to end, first in the low bits, in shared memory.
template <int Bits>
__device__ void put_codes(const int (&codes)[kGranule], std::byte* to) {
  if constexpr (Bits == 32) {
    reinterpret_cast<int4*>(to)[0] = {codes[0], codes[1], codes[2], codes[3]};
    reinterpret_cast<int4*>(to)[1] = {codes[4], codes[5], codes[6], codes[7]};
  } else if constexpr (Bits == 16) {
    std::uint32_t halves[kGranule];
#pragma unroll
    for (unsigned k = 0; k < kGranule; ++k) halves[k] = static_cast<std::uint32_t>(codes[k]) & 0xffffu;
    store_halves(to, halves);
  } else {
    std::uint64_t fields = 0;
#pragma unroll
    for (unsigned k = 0; k < kGranule; ++k)
      fields |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(codes[k]) & ((1u << Bits) - 1)) << (k * Bits);
    if constexpr (Bits == 8) *reinterpret_cast<std::uint64_t*>(to) = fields;
    if constexpr (Bits == 4) *reinterpret_cast<std::uint32_t*>(to) = static_cast<std::uint32_t>(fields);
    if constexpr (Bits == 2) *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(fields);
    if constexpr (Bits != 8 && Bits != 4 && Bits != 2) {
#pragma unroll
      for (unsigned i = 0; i < Bits; ++i) to[i] = static_cast<std::byte>(fields >> (8 * i));
    }
  }
}
/// And back, from memory at any address: up to 8 bits with the top bit extended; past the end they are 0.
template <int Bits>
__device__ void get_codes(const std::byte* from, unsigned valid, int (&codes)[kGranule]) {
  if constexpr (Bits >= 16) {
    using U = std::conditional_t<Bits == 32, std::uint32_t, std::uint16_t>;
    const bool whole = valid == kGranule && is_aligned(from, 16);
    std::uint32_t bits[kGranule];
    if (whole && Bits == 16) {
      load_halves(from, bits);
    } else if (whole) {
      const uint4 low = reinterpret_cast<const uint4*>(from)[0], high = reinterpret_cast<const uint4*>(from)[1];
      bits[0] = low.x, bits[1] = low.y, bits[2] = low.z, bits[3] = low.w;
      bits[4] = high.x, bits[5] = high.y, bits[6] = high.z, bits[7] = high.w;
    } else {
#pragma unroll
      for (unsigned k = 0; k < kGranule; ++k) bits[k] = k < valid ? load_any<U>(from + sizeof(U) * k) : 0u;
    }
#pragma unroll
    for (unsigned k = 0; k < kGranule; ++k) codes[k] = static_cast<int>(bits[k]);
  } else {
    using U = std::conditional_t<Bits == 8, std::uint64_t, std::conditional_t<Bits == 4, std::uint32_t, std::uint16_t>>;
    constexpr bool kOneLoad = Bits == 8 || Bits == 4 || Bits == 2;
    std::uint64_t fields = 0;
    if (kOneLoad && valid == kGranule && is_aligned(from, sizeof(U))) {
      fields = *reinterpret_cast<const U*>(from);
    } else {
      const unsigned bytes = (valid * Bits + 7) / 8;
#pragma unroll 1
      for (unsigned i = 0; i < bytes; ++i) fields |= static_cast<std::uint64_t>(from[i]) << (8 * i);
    }
#pragma unroll
    for (unsigned k = 0; k < kGranule; ++k)
      codes[k] = static_cast<int>(static_cast<std::uint32_t>(fields >> (k * Bits)) << (32 - Bits)) >> (32 - Bits);
  }
}

/// Codes of `Bits` bits, 2 or 4, in shared memory -> digits in memory, by all threads of the block.
template <int Base, int Bits>
__device__ inline void write_digits(const std::byte* codes, unsigned count, unsigned block, std::byte* to) {
  using D = tightwire::detail::Digits<Base>;
  constexpr auto kRow = static_cast<unsigned>(tightwire::detail::kDigitRow), kRun = static_cast<unsigned>(D::run),
                 kRunBytes = static_cast<unsigned>(D::run_bytes), kPerByte = 8u / Bits;
  const auto of_block = static_cast<unsigned>(tightwire::detail::digit_bytes(Base, block)),
             rest = static_cast<unsigned>(tightwire::detail::digit_bytes(Base, count % block));
  const unsigned bytes = count / block * of_block + rest;
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < bytes; i += kThreads) {
    const unsigned begin = i / of_block * block, within = i % of_block;
    const unsigned end = begin + block < count ? begin + block : count;
    unsigned number = 0;
#pragma unroll
    for (unsigned digit = static_cast<unsigned>(D::per_number); digit-- > 0;) {
      const unsigned e = begin + within / kRunBytes * kRun + digit * kRow + within % kRow;
      const unsigned byte = e < end ? static_cast<unsigned>(codes[e / kPerByte]) : 0u;
      const int code = static_cast<int>(byte << (32 - Bits - Bits * (e % kPerByte))) >> (32 - Bits);
      number = Base * number + static_cast<unsigned>(D::digit(code));
    }
    to[i] = static_cast<std::byte>(number >> (8 * (within % kRunBytes / kRow)));
  }
}
/// Codes of eight elements of a block, the first of them number `first` in it; past the end they are 0.
template <int Base>
__device__ inline void get_digits(const std::byte* block, unsigned first, unsigned valid, int (&codes)[kGranule]) {
  using D = tightwire::detail::Digits<Base>;
  constexpr auto kRow = static_cast<unsigned>(tightwire::detail::kDigitRow), kRun = static_cast<unsigned>(D::run);
  const std::byte* const bytes = block + first / kRun * D::run_bytes + first % kRow;
  const unsigned digit = first % kRun / kRow;
#pragma unroll
  for (unsigned k = 0; k < kGranule; ++k) {
    int left = k < valid ? static_cast<int>(bytes[k]) : 0;
    if constexpr (D::number_bytes == 2) left |= k < valid ? static_cast<int>(bytes[kRow + k]) << 8 : 0;
    for (unsigned d = 0; d < digit; ++d) left = D::rest(left);
    codes[k] = D::code(D::first(left));
  }
}

/// Shared memory -> memory, by all threads of the block.
__device__ inline void copy_out(const std::byte* from, std::byte* to, std::size_t bytes) {
  std::size_t done = 0;
  if (is_aligned(to, 16)) {
#pragma unroll 1
    for (std::size_t i = threadIdx.x; i < bytes / 16; i += kThreads)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    done = bytes / 16 * 16;
  }
#pragma unroll 1
  for (std::size_t i = done + threadIdx.x; i < bytes; i += kThreads) to[i] = from[i];
}
__device__ inline void clear(std::byte* at, std::size_t bytes) {
#pragma unroll 1
  for (std::size_t i = threadIdx.x; i < bytes; i += kThreads) at[i] = std::byte{0};
}

}  // namespace tightwire::cuda::detail
