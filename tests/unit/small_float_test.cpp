// Floats of 3 to 8 bits against their definition: a table of values, and the nearest of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/codec/small_float.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/detail/flush_to_zero.hpp>
#include <tightwire/testing/calls.hpp>
#include <tightwire/testing/data.hpp>

#include "unit/small_float_table.hpp"

namespace tightwire::testing::small_float_test {
namespace {

template <class Format>
class SmallFloats : public ::testing::Test {};
using Formats =
    ::testing::Types<detail::E4M3, detail::E5M2, detail::E2M1, detail::Powers<3>, detail::Powers<4>, detail::Powers<5>>;
TYPED_TEST_SUITE(SmallFloats, Formats);

TYPED_TEST(SmallFloats, EveryCodeDecodesToWhatTheDefinitionSays) {
  const SmallFloatTable table = table_of<TypeParam>();
  for (int code = 0; code < 1 << TypeParam::bits; ++code) {
    const int magnitude = code & TypeParam::magnitude_mask;
    const float sign = code >> (TypeParam::bits - 1) != 0 ? -1.0f : 1.0f;
    const float value = TypeParam::decoded(code);
    const double expected = table.all[static_cast<std::size_t>(magnitude)];
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(detail::to_bits(value), detail::to_bits(sign * static_cast<float>(expected))) << code;
    }
    // Codes come from the wire with their top bit extended.
    const int extended = code >> (TypeParam::bits - 1) != 0 ? code - (1 << TypeParam::bits) : code;
    EXPECT_EQ(detail::to_bits(TypeParam::decoded(extended)), detail::to_bits(value)) << code;
  }
}

TYPED_TEST(SmallFloats, KnownValues) {
  if constexpr (std::is_same_v<TypeParam, detail::E4M3>) {
    EXPECT_EQ(TypeParam::largest, 448.0f);
    EXPECT_EQ(TypeParam::decoded(0x08), 0x1p-6f);
    EXPECT_EQ(TypeParam::decoded(0x01), 0x1p-9f);
    EXPECT_TRUE(std::isnan(TypeParam::decoded(0x7f)));
  } else if constexpr (std::is_same_v<TypeParam, detail::E5M2>) {
    EXPECT_EQ(TypeParam::largest, 57344.0f);
    EXPECT_EQ(TypeParam::decoded(0x04), 0x1p-14f);
    EXPECT_EQ(TypeParam::decoded(0x7c), std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(TypeParam::decoded(0x7d)));
  } else if constexpr (std::is_same_v<TypeParam, detail::E2M1>) {
    const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int code = 0; code < 8; ++code) EXPECT_EQ(TypeParam::decoded(code), values[code]);
  } else {
    // Each magnitude above 0 is twice the one before.
    for (int code = 2; code <= TypeParam::magnitude_mask; ++code)
      EXPECT_EQ(TypeParam::decoded(code), 2 * TypeParam::decoded(code - 1));
  }
}

/// Every value, everything halfway between two, and their neighbours among the floats; what is larger than all; zeros.
TYPED_TEST(SmallFloats, EncodingTakesTheNearestAndTheEvenOfTwo) {
  const SmallFloatTable table = table_of<TypeParam>();
  std::vector<float> points = {0.0f, 1e-45f, 1e-30f, TypeParam::largest * 1.5f, 1e30f, 3.4e38f};
  for (std::size_t code = 0; code + 1 < table.finite; ++code) {
    const auto here = static_cast<float>(table.all[code]);
    const auto middle = static_cast<float>((table.all[code] + table.all[code + 1]) / 2);
    for (const float x : {here, middle})
      for (const float y : {std::nextafter(x, 0.0f), x, std::nextafter(x, 1e9f)}) points.push_back(y);
  }
  for (int i = 0; i < 20'000; ++i)
    points.push_back(static_cast<float>(std::ldexp(1.0 + static_cast<double>(i % 997) / 997, i % 60 - 30)));
  for (const bool flush : {false, true}) {
    std::vector<int> codes, negative;
    std::vector<float> values;
    {
      const auto encode = [&] {
        for (const float x : points) {
          codes.push_back(TypeParam::nearest_code(x) & TypeParam::magnitude_mask);
          negative.push_back(TypeParam::nearest_code(-x));
          values.push_back(TypeParam::nearest_value(-x));
        }
      };
      if (flush) {
        const detail::FlushToZero mode;
        encode();
      } else {
        encode();
      }
    }
    for (std::size_t i = 0; i < points.size(); ++i) {
      ASSERT_EQ(codes[i], static_cast<int>(table.nearest(static_cast<double>(points[i])))) << points[i];
      ASSERT_EQ(negative[i], (codes[i] | ~TypeParam::magnitude_mask)) << -points[i] << ": the sign is extended";
      ASSERT_EQ(detail::to_bits(values[i]), detail::to_bits(TypeParam::decoded(negative[i]))) << -points[i];
    }
  }
}

/// With the noise of either end an element goes to the neighbour on that side, and never further.
TYPED_TEST(SmallFloats, NoiseReachesBothNeighboursAndNoFurther) {
  const SmallFloatTable table = table_of<TypeParam>();
  const float down = -0.5f + 0x1p-17f, up = 0.5f - 0x1p-17f;
  for (std::size_t code = 0; code + 1 < table.finite; ++code) {
    const double low = table.all[code], high = table.all[code + 1];
    const auto between = static_cast<float>(low + 0.3 * (high - low));
    EXPECT_EQ(TypeParam::stochastic_code(between, down), static_cast<int>(code));
    EXPECT_EQ(TypeParam::stochastic_code(between, up), static_cast<int>(code) + 1);
    for (const float noise : {down, 0.0f, up})
      EXPECT_EQ(TypeParam::stochastic_code(static_cast<float>(low), noise), static_cast<int>(code)) << low;
  }
}

/// Whatever the bytes: steps and codes that are NaN with a sign and a payload, infinite steps, infinite codes under a
/// step of 0. Which NaN comes of them would otherwise depend on instruction set and device.
TEST(DamagedPayloads, DecodeToTheOneNan) {
  constexpr std::size_t kCount = 300;
  for (const BuiltinCodec& codec : builtin_codecs()) {
    if (codec.name == "dense" || codec.name == "bf16" || codec.name == "fp16") continue;  // elements as they are
    Random random(7);
    for (const unsigned step : {0xffffu, 0x7fffu, 0xff80u, 0x7f80u, 0xffc1u, 0u}) {
      std::vector<std::byte> wire(codec.make({}, host::Level::baseline)->wire_bytes(kCount));
      for (std::byte& byte : wire) byte = static_cast<std::byte>(random.bits());
      // Params are fp32, bf16 or a byte each: these halves are NaN or infinite in all of them, or 0.
      for (std::size_t at = 0; at < 48 && at < wire.size(); ++at)
        wire[at] = static_cast<std::byte>(at % 2 == 0 ? step : step >> 8);
      for (const host::Level level : levels()) {
        std::vector<float> out(kCount);
        codec.make({}, level)->decode(ElementType::f32, {.wire = wire.data(), .count = kCount, .out = out.data()});
        for (const float x : out)
          ASSERT_TRUE(!std::isnan(x) || detail::to_bits(x) == 0x7fc00000u)
              << codec.name << ", step " << step << ", " << to_string(level) << ": " << detail::to_bits(x);
        if (codec.name.find("mx") != 0 && step != 0) {
          ASSERT_TRUE(std::isnan(out[0])) << codec.name << " " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tightwire::testing::small_float_test
