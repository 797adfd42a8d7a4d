#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <tightwire/detail/flush_to_zero.hpp>
#include <tightwire/element.hpp>

#include "unit/float_format.hpp"

namespace tightwire::testing::element_test {
namespace {

using testing::FloatFormat;
using testing::kBfloat16;
using testing::kBinary16;

/// A 16-bit type under test and the functions that convert it, out of line so that they run in the floating point mode
/// of the caller and are not evaluated by the compiler.
struct Subject {
  const char* name;
  FloatFormat format;
  void (*encode)(const std::vector<float>&, std::vector<std::uint16_t>&);
  void (*decode)(const std::vector<std::uint16_t>&, std::vector<float>&);
};

template <ElementType Type>
[[gnu::noinline]] void encode(const std::vector<float>& from, std::vector<std::uint16_t>& to) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = detail::Element<Type>::store(from[i]);
}
template <ElementType Type>
[[gnu::noinline]] void decode(const std::vector<std::uint16_t>& from, std::vector<float>& to) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = detail::Element<Type>::load(from[i]);
}

class Float16 : public ::testing::TestWithParam<Subject> {
 protected:
  std::vector<std::uint16_t> encoded(const std::vector<float>& x, bool flush) const {
    std::vector<std::uint16_t> codes;
    if (flush) {
      const detail::FlushToZero mode;
      GetParam().encode(x, codes);
    } else {
      GetParam().encode(x, codes);
    }
    return codes;
  }
  std::vector<float> decoded(const std::vector<std::uint16_t>& codes, bool flush) const {
    std::vector<float> x;
    if (flush) {
      const detail::FlushToZero mode;
      GetParam().decode(codes, x);
    } else {
      GetParam().decode(codes, x);
    }
    return x;
  }

  /// Compares with the definition, in both modes.
  void expect_rounded(const std::vector<float>& x) const {
    for (const bool flush : {false, true}) {
      const std::vector<std::uint16_t> codes = encoded(x, flush);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(x[i])) {
          ASSERT_TRUE(GetParam().format.is_nan(codes[i])) << i;
          continue;
        }
        ASSERT_EQ(codes[i], GetParam().format.round(static_cast<double>(x[i])))
            << std::hexfloat << x[i] << (flush ? " with subnormals flushed" : "");
      }
    }
  }
};

std::vector<std::uint16_t> all_codes() {
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  return codes;
}

TEST_P(Float16, EveryCodeDecodesToItsValue) {
  for (const bool flush : {false, true}) {
    const std::vector<float> x = decoded(all_codes(), flush);
    for (std::uint32_t code = 0; code < 65536; ++code) {
      const bool negative = (code & 0x8000u) != 0;
      ASSERT_EQ(std::signbit(x[code]), negative) << "sign of code " << code;
      if (GetParam().format.is_nan(static_cast<std::uint16_t>(code))) {
        ASSERT_TRUE(std::isnan(x[code])) << "code " << code;
      } else {
        // Compared as bits and outside the flushing mode, in which 0 would equal every subnormal.
        const auto expected = static_cast<float>(GetParam().format.value(static_cast<std::uint16_t>(code)));
        ASSERT_EQ(detail::to_bits(x[code]), detail::to_bits(expected)) << "code " << code;
      }
    }
  }
}

TEST_P(Float16, EveryCodeSurvivesTheRoundTrip) {
  for (const bool flush : {false, true}) {
    const std::vector<std::uint16_t> codes = encoded(decoded(all_codes(), flush), flush);
    for (std::uint32_t code = 0; code < 65536; ++code) {
      if (GetParam().format.is_nan(static_cast<std::uint16_t>(code))) {
        ASSERT_TRUE(GetParam().format.is_nan(codes[code])) << "code " << code;
        ASSERT_EQ(codes[code] & 0x8000u, code & 0x8000u) << "sign of NaN " << code;
      } else {
        ASSERT_EQ(codes[code], code);
      }
    }
  }
}

/// Around every value and every midpoint between neighbours: the places where rounding can go wrong.
TEST_P(Float16, RoundsToNearestEvenAroundEveryBoundary) {
  const FloatFormat& format = GetParam().format;
  std::vector<float> x;
  for (std::uint32_t code = 0; code < 0x8000u; ++code) {
    const double value = format.value(static_cast<std::uint16_t>(code));
    const double next = format.value(static_cast<std::uint16_t>(code + 1));
    if (!std::isfinite(value)) break;
    const double end = std::isfinite(next) ? next : format.overflow();
    for (const double center : {value, (value + end) / 2}) {
      const std::uint32_t bits = detail::to_bits(static_cast<float>(center));
      for (int step = -3; step <= 3; ++step) {
        const std::uint32_t near = bits + static_cast<std::uint32_t>(step);
        if (near > 0x80000000u) continue;  // below +0
        x.push_back(detail::from_bits(near));
        x.push_back(-detail::from_bits(near));
      }
    }
  }
  ASSERT_GT(x.size(), 400'000u);
  expect_rounded(x);
}

TEST_P(Float16, RoundsAnyPattern) {
  std::mt19937 random(7);
  std::vector<float> x(1'000'000);
  for (float& element : x) element = detail::from_bits(static_cast<std::uint32_t>(random()));
  expect_rounded(x);
}

TEST_P(Float16, RoundsTheOrdinaryRange) {
  std::mt19937 random(8);
  std::vector<float> x(1'000'000);
  for (float& element : x) {
    const auto bits = static_cast<std::uint32_t>(random());
    element = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)), static_cast<int>(random() % 48) - 62);
  }
  expect_rounded(x);
}

TEST_P(Float16, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  expect_rounded({0.0f,
                  -0.0f,
                  infinity,
                  -infinity,
                  65504.0f,
                  65519.996f,
                  65520.0f,
                  -65519.996f,
                  -65520.0f,
                  65536.0f,
                  std::numeric_limits<float>::max(),
                  std::numeric_limits<float>::lowest(),
                  0x1p-24f,
                  0x1p-25f,
                  std::nextafter(0x1p-25f, 1.0f),
                  0x1p-26f,
                  0x1p-126f,
                  0x1p-149f,
                  -0x1p-149f,
                  0x1p-133f,
                  0x1p-134f,
                  std::nextafter(0x1p-134f, 1.0f)});
  // Every sort of NaN, the signalling one with the lowest payload in particular, which must not turn into infinity.
  for (const std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0xff800001u, 0xffc00000u}) {
    const std::vector<std::uint16_t> codes = encoded({detail::from_bits(bits)}, false);
    EXPECT_TRUE(GetParam().format.is_nan(codes[0])) << std::hex << bits;
    EXPECT_EQ(codes[0] >> 15, bits >> 31) << std::hex << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, Float16,
    ::testing::Values(Subject{"bf16", kBfloat16, encode<ElementType::bf16>, decode<ElementType::bf16>},
                      Subject{"fp16", kBinary16, encode<ElementType::f16>, decode<ElementType::f16>}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(FlushToZero, IsWhatTheOtherTestsTakeItFor) {
  if (!detail::FlushToZero::kAvailable) GTEST_SKIP() << "no such mode on this CPU";
  volatile float smallest = 0x1p-126f;
  volatile float subnormal = 0x1p-140f;
  {
    const detail::FlushToZero flush;
    volatile float result = smallest * 0.5f;
    volatile float read = subnormal * 0x1p100f;
    EXPECT_EQ(detail::to_bits(result), 0u);
    EXPECT_EQ(detail::to_bits(read), 0u);
  }
  volatile float result = smallest * 0.5f;
  EXPECT_EQ(detail::to_bits(result), detail::to_bits(0x1p-127f)) << "the mode was not put back";
}

TEST(Element, SinglePrecisionIsUntouched) {
  for (const std::uint32_t bits : {0u, 0x80000000u, 1u, 0x7f800000u, 0x3f800001u, 0x7fc12345u}) {
    using Element = detail::Element<ElementType::f32>;
    EXPECT_EQ(detail::to_bits(Element::store(Element::load(detail::from_bits(bits)))), bits);
  }
}

TEST(Element, SizesAndNames) {
  EXPECT_EQ(element_bytes(ElementType::f32), sizeof(detail::Element<ElementType::f32>::Storage));
  EXPECT_EQ(element_bytes(ElementType::bf16), sizeof(detail::Element<ElementType::bf16>::Storage));
  EXPECT_EQ(element_bytes(ElementType::f16), sizeof(detail::Element<ElementType::f16>::Storage));
  EXPECT_EQ(to_string(ElementType::f32), "fp32");
  EXPECT_EQ(to_string(ElementType::bf16), "bf16");
  EXPECT_EQ(to_string(ElementType::f16), "fp16");
}

// The conversions are usable where constants are.
static_assert(detail::to_f16(1.0f) == 0x3c00 && detail::from_f16(0x3c00) == 1.0f);
static_assert(detail::to_f16(0x1p-24f) == 1 && detail::from_f16(1) == 0x1p-24f);
static_assert(detail::to_bf16(1.0f) == 0x3f80 && detail::from_bf16(0x3f80) == 1.0f);

TEST(Nearest, TiesGoToEvenAndNothingIsUndefined) {
  for (int i = -130; i <= 130; ++i) {
    for (const float offset : {0.0f, 0.25f, 0.49999f, 0.5f, 0.50001f, 0.75f}) {
      const float t = static_cast<float>(i) + offset;
      EXPECT_EQ(detail::nearest(t), static_cast<int>(std::nearbyint(static_cast<double>(t)))) << t;
    }
  }
  EXPECT_EQ(detail::nearest(4194303.0f), 4194303);
  EXPECT_EQ(detail::nearest(-4194303.0f), -4194303);
  for (const float t : {1e30f, -1e30f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(detail::nearest(t), detail::nearest(t));
}

}  // namespace
}  // namespace tightwire::testing::element_test
