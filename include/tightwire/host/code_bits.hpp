#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/detail/bit_fields.hpp>
#include <tightwire/detail/digits.hpp>
#include <tightwire/detail/hd.hpp>
#include <tightwire/detail/pack.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

/// Codes of a byte each -> `Bits` bits each, end to end, first element in the low bits. Unused bits of the last byte
/// are 0. Eight codes make `Bits` bytes.
template <int Bits>
struct PackBits {
  using Job = PackJob;
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job{in_register(given.codes), in_register(given.count), in_register(given.wire)};
    std::size_t i = 0;
    if constexpr (Bits == 4 && W > 4)
      for (; i + 4 * W <= job.count; i += 4 * W) detail::join_nibbles<W>(job.codes + i, job.wire + i / 2);
    // Eight bytes where there is room, of which what is too much is written over next.
    const std::size_t bytes = (job.count * Bits + 7) / 8;
    std::size_t at = i / 8 * Bits;
    for (; i + 8 <= job.count && at + 8 <= bytes; i += 8, at += Bits) {
      const std::uint64_t fields = gather<W>(load(job.codes + i, 8));
      std::memcpy(job.wire + at, &fields, 8);
    }
    for (; i < job.count; i += 8, at += Bits) {
      const std::uint64_t fields = gather<W>(load(job.codes + i, std::min<std::size_t>(job.count - i, 8)));
      std::memcpy(job.wire + at, &fields, std::min<std::size_t>(bytes - at, Bits));
    }
  }

 private:
  TIGHTWIRE_INLINE static std::uint64_t load(const std::byte* from, std::size_t bytes) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, from, bytes);
    return eight;
  }
  template <int W>
  TIGHTWIRE_INLINE static std::uint64_t gather(std::uint64_t codes) {
    if constexpr (W == 4)
      return detail::gather_fields<Bits>(codes);
    else
      return detail::gather_fields_bmi2<Bits>(codes);
  }
};

/// And back, with the top bit of each extended. Writes whole eights.
template <int Bits>
struct UnpackBits {
  using Job = UnpackJob;
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job{in_register(given.wire), in_register(given.count), in_register(given.codes)};
    std::size_t i = 0;
    if constexpr (Bits == 4 && W > 4)
      for (; i + 4 * W <= job.count; i += 4 * W) detail::split_nibbles<W>(job.wire + i / 2, job.codes + i);
    const std::size_t bytes = (job.count * Bits + 7) / 8;
    std::size_t at = i / 8 * Bits;
    for (; i < job.count && at + 8 <= bytes; i += 8, at += Bits) put<W>(job.wire + at, 8, job.codes + i);
    for (; i < job.count; i += 8, at += Bits)
      put<W>(job.wire + at, std::min<std::size_t>(bytes - at, Bits), job.codes + i);
  }

 private:
  template <int W>
  TIGHTWIRE_INLINE static void put(const std::byte* from, std::size_t bytes, std::byte* to) {
    std::uint64_t fields = 0, codes = 0;
    std::memcpy(&fields, from, bytes);
    if constexpr (W == 4)
      codes = detail::scatter_fields<Bits>(fields);
    else
      codes = detail::scatter_fields_bmi2<Bits>(fields);
    codes = detail::extend_fields<Bits>(codes);
    std::memcpy(to, &codes, sizeof codes);
  }
};

/// Codes of one block that take `Base` values, as digits.
template <int Base>
struct PackDigits {
  using Job = PackJob;
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    using D = detail::Digits<Base>;
    constexpr int N = static_cast<int>(detail::kDigitRow) / W;
    for (std::size_t run = 0; run < job.count; run += D::run) {
      detail::Lanes<int, W> numbers[N];
      for (auto& lanes : numbers) lanes = detail::Lanes<int, W>(0);
      int power = 1;
      for (std::size_t at = run; at < std::min(run + D::run, job.count); at += detail::kDigitRow, power *= Base) {
        alignas(16) std::byte row[detail::kDigitRow] = {};
        std::memcpy(row, job.codes + at, std::min(detail::kDigitRow, job.count - at));
        detail::Lanes<int, W> codes[N];
        detail::widen_from_8(row, codes);
        for (int k = 0; k < N; ++k) numbers[k] = numbers[k] + D::digit(codes[k]) * power;
      }
      std::byte* const to = job.wire + run / D::run * D::run_bytes;
      for (int byte = 0; byte < static_cast<int>(D::number_bytes); ++byte) {
        detail::Lanes<int, W> bytes[N];
        for (int k = 0; k < N; ++k) bytes[k] = numbers[k] << (24 - 8 * byte) >> 24;  // in the range that packing takes
        detail::narrow_to_8(bytes, to + 16 * byte);
      }
    }
  }
};

/// And back; a number too large for its digits is that number modulo a power of the base. Writes whole rows.
template <int Base>
struct UnpackDigits {
  using Job = UnpackJob;
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    using D = detail::Digits<Base>;
    constexpr int N = static_cast<int>(detail::kDigitRow) / W;
    for (std::size_t run = 0; run < job.count; run += D::run) {
      detail::Lanes<int, W> numbers[N], codes[N];
      const std::byte* const from = job.wire + run / D::run * D::run_bytes;
      detail::widen_from_8(from, numbers);
      for (auto& lanes : numbers) lanes = lanes & 255;
      if constexpr (D::number_bytes == 2) {
        detail::widen_from_8(from + 16, codes);
        for (int k = 0; k < N; ++k) numbers[k] = numbers[k] | (codes[k] & 255) << 8;
      }
      for (std::size_t at = run; at < std::min(run + D::run, job.count); at += detail::kDigitRow) {
        for (int k = 0; k < N; ++k) {
          codes[k] = D::code(D::first(numbers[k]));
          numbers[k] = D::rest(numbers[k]);
        }
        detail::narrow_to_8(codes, job.codes + at);
      }
    }
  }
};

}  // namespace tightwire::host
