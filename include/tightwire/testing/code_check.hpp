#pragma once
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include <tightwire/codec/concept.hpp>
#include <tightwire/testing/data.hpp>

namespace tightwire::testing {

/// A value of any bytes.
template <class T>
T any(Random& random) {
  T value{};
  if constexpr (!std::is_empty_v<T>) {
    for (std::size_t at = 0; at < sizeof value; ++at) {
      const auto byte = static_cast<unsigned char>(random.bits());
      std::memcpy(reinterpret_cast<std::byte*>(&value) + at, &byte, 1);
    }
  }
  return value;
}

/// `code` gives something that fits the wire for any value and any scale, even one that belongs to another block. (The
/// undefined-behaviour sanitizer sees the rest.)
template <BlockCodec C>
void check_code_is_total() {
  const std::vector<float> extremes = {0.0f,     -0.0f,     1e-45f, -1e-45f, FLT_MIN,    1e-30f,
                                       -1e-30f,  1.0f,      1e30f,  -1e30f,  FLT_MAX,    -FLT_MAX,
                                       INFINITY, -INFINITY, NAN,    -NAN,    8388609.0f, -16777216.0f};
  Random random(31);
  for (int i = 0; i < 20'000; ++i) {
    const typename C::Scale scale = scale_of<C>(any<typename C::Param>(random), any<SharedOf<C>>(random));
    for (const float x : extremes) {
      const long code = ArithmeticOf<C>::code(x, scale);
      const long span = 1L << C::bits;
      if (C::bits < 32) {
        ASSERT_GE(code, -span / 2) << x;
        ASSERT_LT(code, span) << x;
      }
      const float value = ArithmeticOf<C>::value(static_cast<int>(code), scale);
      ASSERT_EQ(detail::to_bits(value), detail::to_bits(ArithmeticOf<C>::value(static_cast<int>(code), scale)));
    }
  }
}

}  // namespace tightwire::testing
