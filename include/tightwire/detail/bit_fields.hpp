#pragma once
#include <cstdint>

#include <tightwire/detail/hd.hpp>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>

namespace tightwire::detail {

/// `value` in every byte.
constexpr std::uint64_t every_byte(unsigned value) { return 0x0101010101010101u * std::uint64_t{value}; }

/// The low `Bits` bits of eight bytes, end to end.
template <int Bits>
constexpr std::uint64_t gather_fields(std::uint64_t bytes) {
  constexpr auto kMask = [](int width, int stride) {
    std::uint64_t mask = 0;
    for (int at = 0; at < 64; at += stride) mask |= ((std::uint64_t{1} << width) - 1) << at;
    return mask;
  };
  // Twice as wide in each step: the upper field of every two moves down to the lower one.
  std::uint64_t x = bytes & kMask(Bits, 8);
  x = (x & kMask(Bits, 16)) | (x >> (8 - Bits) & kMask(Bits, 16) << Bits);
  x = (x & kMask(2 * Bits, 32)) | (x >> (16 - 2 * Bits) & kMask(2 * Bits, 32) << 2 * Bits);
  return (x & kMask(4 * Bits, 64)) | x >> 32 << 4 * Bits;
}

/// Eight fields of `Bits` bits, end to end, into a byte each.
template <int Bits>
constexpr std::uint64_t scatter_fields(std::uint64_t fields) {
  constexpr std::uint64_t kField = (std::uint64_t{1} << Bits) - 1;
  std::uint64_t x = 0;
  for (int i = 0; i < 8; ++i) x |= (fields >> (i * Bits) & kField) << (8 * i);
  return x;
}

/// Bytes that hold a field of `Bits` bits each: its top bit in all bits above it.
template <int Bits>
constexpr std::uint64_t extend_fields(std::uint64_t bytes) {
  return bytes | (bytes & every_byte(1u << (Bits - 1))) * ((1u << (9 - Bits)) - 2);
}

#if defined(__x86_64__)
template <int Bits>
TIGHTWIRE_TARGET_AVX2 inline std::uint64_t gather_fields_bmi2(std::uint64_t bytes) {
  return _pext_u64(bytes, every_byte((1u << Bits) - 1));
}
template <int Bits>
TIGHTWIRE_TARGET_AVX2 inline std::uint64_t scatter_fields_bmi2(std::uint64_t fields) {
  return _pdep_u64(fields, every_byte((1u << Bits) - 1));
}

/// The low nibbles of 4 * W bytes, two to a byte, the first of two low; and back, extended. The commonest width, in few
/// instructions.
template <int W>
void join_nibbles(const std::byte* bytes, std::byte* to);
template <int W>
void split_nibbles(const std::byte* from, std::byte* bytes);

template <>
TIGHTWIRE_TARGET_AVX2 inline void join_nibbles<8>(const std::byte* bytes, std::byte* to) {
  const __m256i low =
      _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)), _mm256_set1_epi8(15));
  const __m256i pairs = _mm256_maddubs_epi16(low, _mm256_set1_epi16(0x1001));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}
template <>
TIGHTWIRE_TARGET_AVX2 inline void split_nibbles<8>(const std::byte* from, std::byte* bytes) {
  const __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i nibble = _mm256_set1_epi8(15), sign = _mm256_set1_epi8(8);
  const __m256i codes = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), nibble);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), _mm256_sub_epi8(_mm256_xor_si256(codes, sign), sign));
}
template <>
TIGHTWIRE_TARGET_AVX512 inline void join_nibbles<16>(const std::byte* bytes, std::byte* to) {
  const __m512i low = _mm512_and_si512(_mm512_loadu_si512(bytes), _mm512_set1_epi8(15));
  const __m512i pairs = _mm512_maddubs_epi16(low, _mm512_set1_epi16(0x1001));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi16_epi8(0xffffffff, pairs));
}
template <>
TIGHTWIRE_TARGET_AVX512 inline void split_nibbles<16>(const std::byte* from, std::byte* bytes) {
  const __m512i pairs =
      _mm512_maskz_cvtepu8_epi16(0xffffffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const __m512i nibble = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(8);
  const __m512i codes = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)), nibble);
  _mm512_storeu_si512(bytes, _mm512_sub_epi8(_mm512_xor_si512(codes, sign), sign));
}
#else
template <int W>
void join_nibbles(const std::byte* bytes, std::byte* to) {
  for (int i = 0; i < 4 * W; i += 2) to[i / 2] = (bytes[i] & std::byte{15}) | bytes[i + 1] << 4;
}
template <int W>
void split_nibbles(const std::byte* from, std::byte* bytes) {
  for (int i = 0; i < 4 * W; ++i)
    bytes[i] = static_cast<std::byte>(((std::to_integer<int>(from[i / 2]) >> (4 * (i % 2)) & 15) ^ 8) - 8);
}
template <int Bits>
inline std::uint64_t gather_fields_bmi2(std::uint64_t bytes) {
  return gather_fields<Bits>(bytes);
}
template <int Bits>
inline std::uint64_t scatter_fields_bmi2(std::uint64_t fields) {
  return scatter_fields<Bits>(fields);
}
#endif

}  // namespace tightwire::detail
