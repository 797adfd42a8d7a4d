#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <tightwire/detail/pack.hpp>
#include <tightwire/element.hpp>

namespace tightwire::host {

using detail::Lanes;

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

/// 4 * W elements of a buffer, from element `at` on, as fp32.
template <ElementType Type, int W>
TIGHTWIRE_INLINE void load(const std::byte* data, std::size_t at, Lanes<float, W> (&x)[4]) {
  const std::byte* from = data + at * element_bytes(Type);
  if constexpr (Type == ElementType::f32) {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) x[i] = Lanes<float, W>::load(from + 4 * W * i);
  } else {
    Lanes<int, W> h[4];
    detail::widen_from_16(from, h);
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) x[i] = from_16_bits<Type>(h[i]);
  }
}
template <int W>
TIGHTWIRE_INLINE void load(const float* data, Lanes<float, W> (&x)[4]) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < 4; ++i) x[i] = Lanes<float, W>::load(data + W * i);
}

/// fp32 to 4 * W elements of a buffer.
template <ElementType Type, int W>
TIGHTWIRE_INLINE void store(const Lanes<float, W> (&x)[4], std::byte* data, std::size_t at) {
  std::byte* to = data + at * element_bytes(Type);
  if constexpr (Type == ElementType::f32) {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) x[i].store(to + 4 * W * i);
  } else {
    Lanes<int, W> h[4];
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) h[i] = to_16_bits<Type>(x[i]);
    detail::narrow_to_16(h, to);
  }
}
template <int W>
TIGHTWIRE_INLINE void store(const Lanes<float, W> (&x)[4], float* data) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < 4; ++i) x[i].store(data + W * i);
}
/// True if `store_difference` may go past the caches there.
inline bool is_aligned(const void* to) { return reinterpret_cast<std::uintptr_t>(to) % 64 == 0; }
template <int W>
TIGHTWIRE_INLINE void store_difference(const Lanes<float, W> (&x)[4], const Lanes<float, W> (&y)[4], float* data,
                                       bool past_cache = false) {
  if (past_cache) {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) store_past_cache(x[i] - y[i], data + W * i);
  } else {
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < 4; ++i) (x[i] - y[i]).store(data + W * i);
  }
}

template <int W>
TIGHTWIRE_INLINE void add(const Lanes<float, W> (&more)[4], Lanes<float, W> (&x)[4]) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < 4; ++i) x[i] = x[i] + more[i];
}
template <int W>
TIGHTWIRE_INLINE void add(const float* more, Lanes<float, W> (&x)[4]) {
  TIGHTWIRE_UNROLL(4)
  for (int i = 0; i < 4; ++i) x[i] = x[i] + Lanes<float, W>::load(more + W * i);
}

/// One element of a buffer.
template <ElementType Type>
TIGHTWIRE_INLINE float load_one(const std::byte* data, std::size_t at) {
  using Bits = std::conditional_t<Type == ElementType::f32, std::uint32_t, std::uint16_t>;
  Bits bits{};
  std::memcpy(&bits, data + at * sizeof bits, sizeof bits);
  if constexpr (Type == ElementType::f32)
    return detail::from_bits(bits);
  else if constexpr (Type == ElementType::bf16)
    return detail::from_bf16(bits);
  else
    return detail::from_f16(bits);
}

/// Memory that the next blocks will be gathered from. Loops ask for it while they compute, so that gathering, which
/// does nothing but wait for memory, finds it there.
class Upcoming {
 public:
  Upcoming() = default;
  /// From element `at` of each on; null: nothing. It may lie past the end of a buffer: a hint harms nothing.
  void data(const std::byte* start, std::size_t at, std::size_t element_size) {
    data_ = place(start, at * element_size);
    element_bytes_ = element_size;
  }
  void sender(const float* start, std::size_t at) { residuals_[0] = place(start, at * sizeof(float)); }
  void owner(const float* start, std::size_t at) { residuals_[1] = place(start, at * sizeof(float)); }

  /// `Count` elements of each, `at` elements further.
  template <int Count>
  TIGHTWIRE_INLINE void ask(std::size_t at) const {
    if (data_ != 0) prefetch<Count>(data_ + at * element_bytes_);
    for (const std::uintptr_t residual : residuals_)
      if (residual != 0) prefetch<Count>(residual + at * sizeof(float));
  }

 private:
  static std::uintptr_t place(const void* start, std::size_t bytes) {
    return start != nullptr ? reinterpret_cast<std::uintptr_t>(start) + bytes : 0;
  }
  template <int Count>
  TIGHTWIRE_INLINE static void prefetch(std::uintptr_t from) {
    TIGHTWIRE_UNROLL(4)
    for (int line = 0; line < Count * 4 / 64; ++line)
      __builtin_prefetch(reinterpret_cast<const void*>(from + static_cast<std::uintptr_t>(64 * line)));
  }

  std::uintptr_t data_ = 0;
  std::size_t element_bytes_ = 0;
  std::uintptr_t residuals_[2] = {0, 0};
};

}  // namespace tightwire::host
