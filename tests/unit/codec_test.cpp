#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/testing/codec_conformance.hpp>

#include "unit/builtin_codec_claims.hpp"
#include "unit/support/builtin_subjects.hpp"

namespace {

using tightwire::AbsMax;
using tightwire::BlockCodec;
using tightwire::ElementType;
namespace detail = tightwire::detail;

/// A codec of one's own: what an extension author writes. 8-bit integers under a power of two, one exponent byte per
/// block.
struct PowerOfTwo8 {
  static constexpr std::string_view name = "power-of-two8";
  static constexpr int bits = 8;
  static constexpr float accuracy = 0.015f;
  int block = 128;

  using Stat = AbsMax;
  using Param = std::uint8_t;  // biased exponent of the step; 0 and 255: none
  using Arithmetic = detail::StepArithmetic<true>;
  using Scale = Arithmetic::Scale;

  static constexpr Param param(Stat stat) {
    if (!stat.finite()) return 255;
    if (stat.bits == 0) return 0;
    const std::uint32_t rounded_up = (detail::to_bits(stat.value() / 127.0f) + 0x7fffffu) >> 23;
    return static_cast<Param>(std::clamp(rounded_up, 1u, 248u));  // 127 * 2^(248 - 127) is the largest that is finite
  }
  static constexpr Scale scale(Param param) {
    const auto as_bf16 = static_cast<std::uint16_t>(param == 255 ? 0x7fc0 : param << 7);
    return detail::step_scale(as_bf16, {-127.0f, 127.0f});
  }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<PowerOfTwo8>);

}  // namespace

template <>
struct tightwire::testing::Claims<PowerOfTwo8> : tightwire::testing::DefaultClaims {
  static double error_bound(double, double largest) {
    const double step = std::exp2(std::ceil(std::log2(std::abs(largest) / 127)));
    if (step > 0x1p121) return 0x1p121 * kArithmetic;  // clipped: 128 steps down to 127
    return 0.5 * std::max(step, 0x1p-126) * kArithmetic;
  }
  static constexpr bool odd_symmetric = true;
};

namespace tightwire::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Builtin, CodecConformance, ::testing::ValuesIn(builtin_subjects()), CodecName{});
INSTANTIATE_TEST_SUITE_P(UserDefined, CodecConformance, ::testing::Values(subject<PowerOfTwo8>()), CodecName{});

TEST(Codec, SpecsNameTheCodecAndItsSettings) {
  EXPECT_EQ(HostCoder<Dense>().spec(), "dense:block=256");
  EXPECT_EQ(HostCoder<Int8>(Int8{.block = 512}).spec(), "int8:block=512");
  EXPECT_EQ(HostCoder<Int4>().spec(), "int4:block=64");
}

/// Quantizers show a non-finite element by making its whole block NaN; dense codecs touch nothing but the element.
TEST(Codec, ReachOfANonFiniteElement) {
  const auto decoded_with = [](const Subject& codec, float value) {
    std::vector<float> x(3 * static_cast<std::size_t>(codec.block), 1.0f);
    x[static_cast<std::size_t>(codec.block) + 7] = value;
    return round_trip(*codec.coder(), x);
  };
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    for (const Subject& codec : {builtin_subject("int8"), builtin_subject("int4")}) {
      const std::vector<float> decoded = decoded_with(codec, value);
      const auto block = static_cast<std::size_t>(codec.block);
      for (std::size_t i = 0; i < decoded.size(); ++i) ASSERT_EQ(std::isnan(decoded[i]), i / block == 1) << codec.name;
    }
    for (const Subject& codec : {builtin_subject("dense"), builtin_subject("bf16"), builtin_subject("fp16")}) {
      const std::vector<float> decoded = decoded_with(codec, value);
      const std::size_t place = static_cast<std::size_t>(codec.block) + 7;
      for (std::size_t i = 0; i < decoded.size(); ++i) {
        ASSERT_TRUE(i == place || decoded[i] == 1.0f) << codec.name << " element " << i;
      }
      EXPECT_TRUE(std::isnan(value) ? std::isnan(decoded[place]) : decoded[place] == value) << codec.name;
    }
  }
}

/// Finite values beyond the wire type are cut off, and residuals have the rest; a sum that a buffer of that very type
/// cannot hold is reported, since it has no residual.
TEST(Codec, CastsSaturate) {
  const std::pair<Subject, float> casts[] = {{builtin_subject("bf16"), 0x1.fep127f},
                                             {builtin_subject("fp16"), 65504.0f}};
  for (const auto& [codec, largest] : casts) {
    const float beyond = std::nextafter(largest + (largest - std::nextafter(largest, 0.0f)), INFINITY);
    std::vector<float> x(100, 1.0f);
    x[3] = FLT_MAX, x[4] = -FLT_MAX, x[50] = beyond, x[51] = -largest, x[52] = INFINITY;
    std::vector<float> expected = x;
    expected[3] = expected[50] = largest, expected[4] = -largest;
    const std::vector<float> before(100, 0.0f);
    for (const host::Level level : levels()) {
      const auto coder = codec.coder(level);
      const EncodeOutput encoded = encode(*coder, ElementType::f32, x, before);
      EXPECT_EQ(encoded.nonfinite, 1u) << codec.name;
      EXPECT_EQ(decode(*coder, encoded.wire, 100), expected) << codec.name;
      EXPECT_TRUE(same_bits(encoded.residual, residual_after(x, expected, before))) << codec.name;
    }
  }
  for (const auto& [codec, type] :
       {std::pair(builtin_subject("bf16"), ElementType::bf16), {builtin_subject("fp16"), ElementType::f16}}) {
    CombineInput input;
    input.type = type;
    input.contributions.assign(2, std::vector<float>(100, 1.0f));
    for (std::vector<float>& contribution : input.contributions) contribution[7] = -codec.saturation;
    std::vector<std::vector<std::byte>> wires;
    for (const auto& contribution : input.contributions)
      wires.push_back(encode(*codec.coder(), type, contribution).wire);
    const CombineOutput sum = combine(*codec.coder(), input, wires);
    EXPECT_EQ(sum.nonfinite.result, 1u) << codec.name;
    EXPECT_EQ(sum.out[7], -INFINITY) << codec.name;
    EXPECT_EQ(sum.out[8], 2.0f) << codec.name;
  }
}

/// Equal values are equal bytes: a NaN goes out as the canonical one, whatever its sign and payload.
TEST(Codec, NaNsAreOneOnTheWire) {
  for (const Subject& codec : {builtin_subject("dense"), builtin_subject("bf16"), builtin_subject("fp16"),
                               builtin_subject("int8"), builtin_subject("int4")}) {
    const std::vector<float> canonical(40, detail::from_bits(0x7fc00000u));
    const std::vector<std::byte> expected = encode(*codec.coder(), ElementType::f32, canonical).wire;
    for (const std::uint32_t bits : {0xffc00000u, 0x7f800001u, 0xffffffffu, 0x7fd55555u}) {
      const std::vector<float> x(40, detail::from_bits(bits));
      EXPECT_TRUE(same_bytes(encode(*codec.coder(), ElementType::f32, x).wire, expected)) << codec.name << " " << bits;
    }
    EXPECT_TRUE(std::isnan(decode(*codec.coder(), expected, 40)[39])) << codec.name;
  }
}

/// A slice of int4 by hand: step 1 in every block, codes two to a byte, the even element low.
std::vector<std::byte> int4_wire(const std::vector<int>& codes) {
  const std::size_t blocks = (codes.size() + 63) / 64;
  const std::size_t codes_at = (2 * blocks + 15) / 16 * 16;
  std::vector<std::byte> wire(codes_at + ((codes.size() + 1) / 2 + 15) / 16 * 16);
  for (std::size_t b = 0; b < blocks; ++b) wire[2 * b] = std::byte{0x80}, wire[2 * b + 1] = std::byte{0x3f};
  for (std::size_t i = 0; i < codes.size(); ++i)
    wire[codes_at + i / 2] |= static_cast<std::byte>((codes[i] & 15) << (i % 2 == 0 ? 0 : 4));
  return wire;
}

TEST(Int4Packing, EveryPairOfCodesAtEverySize) {
  const HostCoder<Int4> coder;
  for (int first = -8; first < 8; ++first) {
    for (int second = -8; second < 8; ++second) {
      for (std::size_t count = 0; count <= 130; ++count) {
        std::vector<int> codes(count);
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) {
          // -8 opens each block and makes its step 1.
          codes[i] = i % 64 == 0 ? -8 : i % 2 == 0 ? first : second;
          values[i] = static_cast<float>(codes[i]);
        }
        const std::vector<std::byte> wire = int4_wire(codes);
        const std::vector<float> decoded = decode(coder, wire, count);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(decoded[i], values[i]) << first << " " << second << " at " << i;
        ASSERT_TRUE(same_bytes(encode(coder, ElementType::f32, values).wire, wire)) << first << " " << second;
      }
    }
  }
}

TEST(Int8Packing, EveryPairOfCodes) {
  const HostCoder<Int8> coder;
  for (int first = -127; first <= 127; ++first) {
    std::vector<float> values;
    std::vector<std::byte> codes;
    for (int second = -127; second <= 127; ++second) {
      if (values.size() % 256 == 0) values.push_back(127.0f), codes.push_back(std::byte{127});  // makes the step 1
      for (const int code : {first, second})
        values.push_back(static_cast<float>(code)), codes.push_back(static_cast<std::byte>(code));
      if (values.size() % 256 == 255) values.push_back(0.0f), codes.push_back(std::byte{0});
    }
    const EncodeOutput encoded = encode(coder, ElementType::f32, values);
    ASSERT_TRUE(same_bytes(std::span(encoded.wire).subspan(16, codes.size()), codes)) << first;
    ASSERT_TRUE(same_bits(decode(coder, encoded.wire, values.size()), values)) << first;
  }
}

TEST(StepCode, SaturatesUnderAScaleThatIsTooSmall) {
  const auto one = static_cast<std::uint16_t>(0x3f80);
  for (const auto& [x, code] : std::vector<std::pair<float, int>>{{-129, -127},
                                                                  {-128, -127},
                                                                  {-127, -127},
                                                                  {-1, -1},
                                                                  {0, 0},
                                                                  {127, 127},
                                                                  {128, 127},
                                                                  {1e30f, 127},
                                                                  {-1e30f, -127}})
    EXPECT_EQ(Int8::Arithmetic::code(x, Int8::scale(one)), code) << x;
  // -s is what the step of int4 is made of, so that its sign turns the codes around.
  const auto minus_one = static_cast<std::uint16_t>(0xbf80);
  for (const auto& [x, code] : std::vector<std::pair<float, int>>{
           {-9, 7}, {-8, 7}, {-7, 7}, {-1, 1}, {0, 0}, {7, -7}, {8, -8}, {9, -8}, {1e30f, -8}, {-1e30f, 7}})
    EXPECT_EQ(Int4::Arithmetic::code(x, Int4::scale(minus_one)), code) << x;
}

/// The element of largest magnitude is met exactly up to the rounding of the step, whichever its sign; of -m and +m, -m
/// is.
TEST(Int4, LargestElementTakesTheSixteenthCode) {
  const HostCoder<Int4> coder;
  for (const float extreme : {4.0f, -4.0f}) {
    std::vector<float> x(64, 0.25f);
    x[40] = extreme;
    EXPECT_EQ(round_trip(coder, x)[40], extreme);
    EXPECT_EQ(static_cast<signed char>(encode(coder, ElementType::f32, x).wire[16 + 20]) & 15, 8);
  }
  std::vector<float> tie(64, 0.0f);
  tie[3] = 4.0f, tie[9] = -4.0f;
  const std::vector<float> decoded = round_trip(coder, tie);
  EXPECT_EQ(decoded[3], 3.5f);
  EXPECT_EQ(decoded[9], -4.0f);
}

/// Sizes and groups of a launch that overlapped elsewhere: each element is written, and once.
TEST(Codec, LargeSliceOfAnUnusualBlock) {
  const std::size_t count = 589'824;
  const std::vector<float> x = Random(12).gaussian(count);
  for (const Subject& codec : {builtin_subject("int8"), builtin_subject("int4")}) {
    const auto coder = codec.coder_at(144, host::supported_level());
    const EncodeOutput encoded = encode(*coder, ElementType::f32, x, std::vector<float>(count, 0.0f));
    const std::vector<float> decoded = decode(*coder, encoded.wire, count);
    EXPECT_TRUE(same_bytes(encoded.wire, codec.reference_at(144)->encode(x).wire));
    EXPECT_TRUE(within_bound(codec, 144, x, decoded));
    EXPECT_TRUE(same_bits(encoded.residual, residual_after(x, decoded, x)));
  }
}

}  // namespace
}  // namespace tightwire::testing
