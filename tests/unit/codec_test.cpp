#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string_view>
#include <vector>

#include <tightwire/host/builtin.hpp>
#include <tightwire/testing/codec_conformance.hpp>

#include "builtin_codec_claims.hpp"

namespace {

using namespace tightwire;

/// A codec of one's own: what an extension author writes. 8-bit integers under a power of two, one exponent byte per block.
struct PowerOfTwo8 {
  static constexpr std::string_view name = "power-of-two8";
  static constexpr int bits = 8;
  static constexpr float accuracy = 0.015f;
  int block = 128;

  using Stat = AbsMax;
  using Param = std::uint8_t;  // biased exponent of the step; 0 and 255: none
  using Scale = detail::StepScale;

  static constexpr Param param(Stat stat) {
    if (!stat.finite()) return 255;
    if (stat.bits == 0) return 0;
    const std::uint32_t rounded_up = (detail::to_bits(stat.value() / 127.0f) + 0x7fffffu) >> 23;
    return static_cast<Param>(std::clamp(rounded_up, 1u, 248u));  // 127 * 2^(248 - 127) is the largest that is finite
  }
  static constexpr Scale scale(Param param) {
    const auto as_bf16 = static_cast<std::uint16_t>(param == 255 ? 0x7fc0 : param << 7);
    return detail::step_scale(as_bf16, -127.0f, 127.0f);
  }
  static constexpr int code(float x, Scale scale) { return detail::step_code(x, scale); }
  static constexpr float value(int code, Scale scale) { return static_cast<float>(code) * scale.step; }
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

INSTANTIATE_TYPED_TEST_SUITE_P(Builtin, CodecConformance, AsTestTypes<BuiltinCodecs>::Type, CodecName);
INSTANTIATE_TYPED_TEST_SUITE_P(UserDefined, CodecConformance, ::testing::Types<PowerOfTwo8>, CodecName);

TEST(Codec, SpecsNameTheCodecAndItsSettings) {
  EXPECT_EQ(HostCoder<Dense>().spec(), "dense:block=256");
  EXPECT_EQ(HostCoder<Int8>(Int8{.block = 512}).spec(), "int8:block=512");
  EXPECT_EQ(HostCoder<Int4>().spec(), "int4:block=64");
}

}  // namespace
}  // namespace tightwire::testing
