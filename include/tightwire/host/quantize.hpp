#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

/// Codes of N * W elements -> memory.
template <int Bytes, int W, int N>
TIGHTWIRE_INLINE void put_codes(const Lanes<int, W> (&codes)[N], std::byte* to) {
  if constexpr (Bytes == 4) {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < N; ++i) codes[i].store(to + 4 * W * i);
  } else if constexpr (Bytes == 1) {
    detail::narrow_to_8(codes, to);
  } else if constexpr (N == 4) {
    detail::narrow_to_16(codes, to);
  } else {
    for (int i = 0; i < N * W; ++i) {
      const auto code = static_cast<std::uint16_t>(codes[i / W].v[i % W]);
      std::memcpy(to + 2 * i, &code, sizeof code);
    }
  }
}
/// And back, those of a byte signed, those of two not.
template <int Bytes, int W, int N>
TIGHTWIRE_INLINE void get_codes(const std::byte* from, Lanes<int, W> (&codes)[N]) {
  if constexpr (Bytes == 4) {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < N; ++i) codes[i] = Lanes<int, W>::load(from + 4 * W * i);
  } else if constexpr (Bytes == 1) {
    detail::widen_from_8(from, codes);
  } else if constexpr (N == 4) {
    detail::widen_from_16(from, codes);
  } else {
    for (int i = 0; i < N * W; ++i) {
      std::uint16_t code = 0;
      std::memcpy(&code, from + 2 * i, sizeof code);
      codes[i / W].v[i % W] = code;
    }
  }
}

/// The scales of the registers of a group. One for all is loaded once: what is stored in between might be it, as far as
/// a compiler knows.
template <class Scale>
struct OneScale {
  Scale scale;
  TIGHTWIRE_INLINE const Scale& operator[](int) const { return scale; }
};
template <class Scale>
struct SeveralScales {
  const Scale* scales;
  const SeveralParts& parts;
  TIGHTWIRE_INLINE const Scale& operator[](int k) const { return scales[parts[k]]; }
};
template <class Scale>
TIGHTWIRE_INLINE OneScale<Scale> scales_of(const Scale* scales, const OnePart& parts) {
  return {scales[parts.part]};
}
template <class Scale>
TIGHTWIRE_INLINE SeveralScales<Scale> scales_of(const Scale* scales, const SeveralParts& parts) {
  return {scales, parts};
}

/// See QuantizeJob.
template <class A, int Bytes>
struct Quantize {
  using Job = QuantizeJob;
  using Scale = typename A::Scale;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    all<W, false>(in_registers(given));
  }
  /// `Within`: elements are known to need no clamp, and are rounded to nearest.
  template <int W, bool Within>
  TIGHTWIRE_INLINE static void all(const Job& job) {
    const auto* scales = static_cast<const Scale*>(job.scales);
    for_parts<W>(job.count, job.part, [&]<int N>(std::size_t i, const auto& parts) TIGHTWIRE_LAMBDA_INLINE {
      group<W, N, Within>(job, scales, parts, i);
    });
  }

 private:
  template <int W, int N, bool Within>
  TIGHTWIRE_INLINE static void group(const Job& job, const Scale* all_scales, const auto& parts, std::size_t i) {
    const auto scales = scales_of(all_scales, parts);
    using With = Arithmetic<A, W>;
    Lanes<float, W> x[N];
    typename With::Encoded encoded[N];
    load<W>(job.x + i, x);
    if (job.added != nullptr) add<W>(job.added + i, x);
    if constexpr (Within) {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) encoded[k] = With::encode_within(x[k], scales[k]);
    } else if (job.noise != nullptr) {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k)
        encoded[k] = With::encode(x[k], scales[k], Lanes<float, W>::load(job.noise + i + W * k));
    } else {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) encoded[k] = With::encode(x[k], scales[k]);
    }
    if (job.difference != nullptr) put_difference<With, W>(job, x, encoded, scales, i);
    if (job.values != nullptr) {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) With::decoded(encoded[k], scales[k]).store(job.values + i + W * k);
    }
    if (job.codes != nullptr) {
      Lanes<int, W> codes[N];
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) codes[k] = With::codes(encoded[k]);
      std::byte* to = job.codes + i * Bytes;
      if (!job.codes_past_cache) {
        put_codes<Bytes, W>(codes, to);
      } else {
        alignas(64) std::byte packed[N * W * Bytes];
        put_codes<Bytes, W>(codes, packed);
        detail::copy_past_cache(packed, to, N * W * Bytes);
      }
    }
  }
  template <class With, int W, int N>
  TIGHTWIRE_INLINE static void put_difference(const Job& job, const Lanes<float, W> (&x)[N],
                                              const typename With::Encoded (&encoded)[N], const auto& scales,
                                              std::size_t i) {
    if (job.difference_past_cache) {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k)
        store_past_cache(With::difference(x[k], encoded[k], scales[k]), job.difference + i + W * k);
    } else {
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) With::difference(x[k], encoded[k], scales[k]).store(job.difference + i + W * k);
    }
  }
};

/// See DequantizeJob.
template <class A, int Bytes>
struct Dequantize {
  using Job = DequantizeJob;
  using Scale = typename A::Scale;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& given) {
    const Job job = in_registers(given);
    const auto* scales = static_cast<const Scale*>(job.scales);
    for_parts<W>(job.count, job.part, [&]<int N>(std::size_t i, const auto& parts) TIGHTWIRE_LAMBDA_INLINE {
      const auto scale = scales_of(scales, parts);
      Lanes<int, W> codes[N];
      get_codes<Bytes, W>(job.codes + i * Bytes, codes);
      if (!job.past_cache) {
        // Lines are read before they are written, and without this not before their values are there.
        TIGHTWIRE_UNROLL(4)
        for (int line = 0; line < N * W; line += 16) detail::prefetch_to_write(job.values + i + line + kAhead);
      }
      if (job.past_cache) {
        TIGHTWIRE_UNROLL(4)
        for (int k = 0; k < N; ++k)
          store_past_cache(Arithmetic<A, W>::value(codes[k], scale[k]), job.values + i + W * k);
      } else {
        TIGHTWIRE_UNROLL(4)
        for (int k = 0; k < N; ++k) Arithmetic<A, W>::value(codes[k], scale[k]).store(job.values + i + W * k);
      }
    });
  }
};

}  // namespace tightwire::host
