#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/detail/pack.hpp>
#include <tightwire/element.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire::host {

using detail::Lanes;

template <int W, int N>
TIGHTWIRE_INLINE void load(const float* data, Lanes<float, W> (&x)[N]) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < N; ++i) x[i] = Lanes<float, W>::load(data + W * i);
}
template <int W, int N>
TIGHTWIRE_INLINE void store(const Lanes<float, W> (&x)[N], float* data) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < N; ++i) x[i].store(data + W * i);
}
template <int W, int N>
TIGHTWIRE_INLINE void add(const float* more, Lanes<float, W> (&x)[N]) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < N; ++i) x[i] = x[i] + Lanes<float, W>::load(more + W * i);
}
/// True if a buffer can be taken for floats where it stands: users' buffers may begin at any byte.
inline bool holds_floats(ElementType type, const void* at) {
  return type == ElementType::f32 && reinterpret_cast<std::uintptr_t>(at) % alignof(float) == 0;
}
/// True if lanes may be stored there past the caches.
inline bool is_aligned(const void* to) { return reinterpret_cast<std::uintptr_t>(to) % 64 == 0; }

/// Asks for the elements that come kAhead after `Count` at `x`. Any address will do.
template <int Count>
TIGHTWIRE_INLINE void prefetch_ahead(const float* x) {
  TIGHTWIRE_UNROLL(4)
  for (int line = 0; line < Count; line += 16) detail::prefetch(x + line + kAhead);
}

/// Calls `step.template operator()<N>(i)` for N * W elements at a time, of a number of whole units.
template <int W, class Step>
TIGHTWIRE_INLINE void for_units(std::size_t begin, std::size_t end, const Step& step) {
  constexpr int kUnitLanes = static_cast<int>(kUnit) / W;
  std::size_t i = begin;
  for (; i + 4 * W <= end; i += 4 * W) step.template operator()<4>(i);
  if constexpr (kUnitLanes < 4)
    for (; i < end; i += kUnit) step.template operator()<kUnitLanes>(i);
}

/// The same place of all registers of a group.
struct OnePart {
  std::size_t part;
  std::size_t operator[](int) const { return part; }
};
/// Registers of a group in parts of their own.
struct SeveralParts {
  std::size_t parts[4];
  std::size_t operator[](int k) const { return parts[k]; }
};
/// Calls `step.template operator()<N>(i, parts)` for N * W elements at a time, where parts[k] is the part that register
/// k lies in. Parts are whole units; those shorter than a group share one.
template <int W, class Step>
TIGHTWIRE_INLINE void for_parts(std::size_t count, std::size_t part, const Step& step) {
  if (part % (4 * W) == 0) {
    for (std::size_t begin = 0, p = 0; begin < count; begin += part, ++p)
      for_units<W>(begin, std::min(begin + part, count),
                   [&]<int N>(std::size_t i) TIGHTWIRE_LAMBDA_INLINE { step.template operator()<N>(i, OnePart{p}); });
  } else {
    std::size_t p = 0, within = 0;
    for_units<W>(0, count, [&]<int N>(std::size_t i) TIGHTWIRE_LAMBDA_INLINE {
      SeveralParts parts{};
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) {
        parts.parts[k] = p;
        within += W;
        if (within == part) within = 0, ++p;
      }
      step.template operator()<N>(i, parts);
    });
  }
}

template <ElementType Type, int W>
requires(Type != ElementType::f32) TIGHTWIRE_INLINE Lanes<float, W> from_16_bits(const Lanes<int, W>& h) {
  if constexpr (Type == ElementType::bf16)
    return detail::bf16_value(as_unsigned(h));
  else
    return detail::f16_value(as_unsigned(h));
}
template <ElementType Type, int W>
requires(Type != ElementType::f32) TIGHTWIRE_INLINE Lanes<int, W> to_16_bits(const Lanes<float, W>& x) {
  if constexpr (Type == ElementType::bf16)
    return as_int(detail::bf16_bits(x));
  else
    return as_int(detail::f16_bits(x));
}

/// `count` elements of a 16-bit buffer -> fp32.
template <ElementType Type>
struct Widen {
  struct Job {
    const std::byte* from;
    std::size_t count;
    float* x;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    std::size_t i = 0;
    Lanes<float, W> x[4];
    Lanes<int, W> h[4];
    for (; i + 4 * W <= job.count; i += 4 * W) {
      detail::widen_from_16(job.from + 2 * i, h);
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) x[k] = from_16_bits<Type>(h[k]);
      store<W>(x, job.x + i);
    }
    for (; i < job.count; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, job.from + 2 * i, sizeof bits);
      job.x[i] = Type == ElementType::bf16 ? detail::from_bf16(bits) : detail::from_f16(bits);
    }
  }
};

/// fp32 -> a 16-bit buffer.
template <ElementType Type>
struct Narrow {
  struct Job {
    const float* x;
    std::size_t count;
    std::byte* to;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    std::size_t i = 0;
    Lanes<float, W> x[4];
    Lanes<int, W> h[4];
    for (; i + 4 * W <= job.count; i += 4 * W) {
      load<W>(job.x + i, x);
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) h[k] = to_16_bits<Type>(x[k]);
      detail::narrow_to_16(h, job.to + 2 * i);
    }
    for (; i < job.count; ++i) {
      const std::uint16_t bits = Type == ElementType::bf16 ? detail::to_bf16(job.x[i]) : detail::to_f16(job.x[i]);
      std::memcpy(job.to + 2 * i, &bits, sizeof bits);
    }
  }
};

/// values := what the type holds of them; difference := x - values, unless null. Whole units. Returns the bits of the
/// largest magnitude in `values` before.
template <ElementType Type>
struct Round {
  struct Job {
    const float* x;
    float* values;
    float* difference;
    std::size_t count;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    for_units<W>(0, job.count, [&]<int N>(std::size_t i) TIGHTWIRE_LAMBDA_INLINE {
      Lanes<float, W> from[N], value[N];
      load<W>(job.values + i, value);
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) value[k] = from_16_bits<Type>(to_16_bits<Type>(value[k]));
      store<W>(value, job.values + i);
      if (job.difference == nullptr) return;
      load<W>(job.x + i, from);
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < N; ++k) from[k] = from[k] - value[k];
      store<W>(from, job.difference + i);
    });
  }
};

/// Magnitude from which fp32 rounds to infinity in a buffer of the type.
constexpr int overflow_bits(ElementType type) {
  return type == ElementType::bf16 ? 0x7f7f8000 : type == ElementType::f16 ? 0x477ff000 : 0x7f800000;
}

/// What depends on the type of a buffer, for fp32 nothing.
inline void widen(Level level, ElementType type, const std::byte* from, std::size_t count, float* x) {
  if (type == ElementType::bf16) return run<Widen<ElementType::bf16>>(level, {from, count, x});
  if (type == ElementType::f16) return run<Widen<ElementType::f16>>(level, {from, count, x});
  std::memcpy(x, from, count * sizeof(float));
}
inline void narrow(Level level, ElementType type, const float* x, std::size_t count, std::byte* to) {
  if (type == ElementType::bf16) return run<Narrow<ElementType::bf16>>(level, {x, count, to});
  if (type == ElementType::f16) return run<Narrow<ElementType::f16>>(level, {x, count, to});
  std::memcpy(to, x, count * sizeof(float));
}
inline void round(Level level, ElementType type, const float* x, float* values, float* difference, std::size_t count) {
  if (type == ElementType::bf16) return run<Round<ElementType::bf16>>(level, {x, values, difference, count});
  if (type == ElementType::f16) return run<Round<ElementType::f16>>(level, {x, values, difference, count});
}

}  // namespace tightwire::host
