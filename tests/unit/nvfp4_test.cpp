// What the conformance suite does not know of NVFP4: its two scales.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/testing/calls.hpp>

#include "unit/small_float_table.hpp"

namespace tightwire::testing::nvfp4_test {
namespace {

constexpr unsigned kOne = 0x3f80;  // as a bf16
constexpr std::uint8_t kFactorOne = 0x38;

/// A block of 32 on the wire: the shared bf16, two factors, and codes from byte 16 on.
std::vector<std::byte> wire_of(unsigned shared, std::uint8_t first, std::uint8_t second, std::uint8_t code) {
  std::vector<std::byte> wire(32);
  const std::uint16_t halves[] = {static_cast<std::uint16_t>(shared), static_cast<std::uint16_t>(first | second << 8)};
  std::memcpy(wire.data(), halves, 4);
  std::fill(wire.begin() + 16, wire.end(), static_cast<std::byte>(code | code << 4));
  return wire;
}

TEST(NvFp4, WireOfOneBlock) {
  const HostCoder<NvFp4> coder(NvFp4{.block = 32});
  std::vector<float> x(32, 6.0f);
  for (std::size_t i = 16; i < 32; ++i) x[i] = -6.0f * 448;
  std::vector<std::byte> expected = wire_of(kOne, kFactorOne, 0x7e, 7);
  std::fill(expected.begin() + 24, expected.end(), std::byte{0xff});
  EXPECT_TRUE(same_bytes(encode(coder, ElementType::f32, x).wire, expected));
  EXPECT_TRUE(same_bits(decode(coder, expected, 32), x));
}

/// Every factor times every float, against the definition of both; NaN is a NaN and signs of scales mean nothing.
TEST(NvFp4, EveryFactorDecodesToWhatTheDefinitionSays) {
  const SmallFloatTable factors = table_of<detail::E4M3>(), floats = table_of<detail::E2M1>();
  const HostCoder<NvFp4> coder(NvFp4{.block = 32});
  for (int factor = 0; factor < 256; ++factor) {
    for (int code = 0; code < 16; ++code) {
      for (const unsigned shared : {0x3f80u, 0xbfc0u, 0x7f80u, 0x7fc1u}) {
        const std::vector<std::byte> wire =
            wire_of(shared, static_cast<std::uint8_t>(factor), kFactorOne, static_cast<std::uint8_t>(code));
        const float value = decode(coder, wire, 32)[0];
        if ((factor & 0x7f) == 0x7f || shared >> 7 == 0xff) {
          ASSERT_TRUE(std::isnan(value)) << factor << " " << shared;
          continue;
        }
        const double scale = factors.all[static_cast<std::size_t>(factor & 0x7f)] * (shared == 0x3f80 ? 1.0 : 1.5);
        const double magnitude = scale * floats.all[static_cast<std::size_t>(code & 7)];
        ASSERT_EQ(value, static_cast<float>(code >= 8 ? -magnitude : magnitude)) << factor << " " << code;
      }
    }
  }
}

/// A NaN takes its 16 elements along; the rest of the block is as if they were zeros.
TEST(NvFp4, ANonFiniteElementReachesItsPartAlone) {
  const HostCoder<NvFp4> coder;
  for (const float value : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> x = Random(3).gaussian(2000);
    std::fill(x.begin() + 1040, x.begin() + 1056, 0.0f);
    const std::vector<float> clean = round_trip(coder, x);
    x[1050] = value;
    const std::vector<float> decoded = round_trip(coder, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / 16 == 1050 / 16)
        ASSERT_TRUE(std::isnan(decoded[i])) << i;
      else
        ASSERT_EQ(decoded[i], clean[i]) << i;
    }
  }
}

/// The point of a scale for every 16: an outlier costs its neighbours and no more, where a step per 64 costs four times
/// as many.
TEST(NvFp4, OutliersCostLessThanUnderOneScale) {
  const std::vector<float>& x = sample(Distribution::outliers);
  EXPECT_LT(nmse(x, round_trip(HostCoder<NvFp4>(), x)), 0.6 * nmse(x, round_trip(HostCoder<Int4>(), x)));
  EXPECT_LT(nmse(x, round_trip(HostCoder<NvFp4>(), x)), 0.6 * nmse(x, round_trip(HostCoder<Fp4>(), x)));
}

}  // namespace
}  // namespace tightwire::testing::nvfp4_test
