// What a user of an installed tightwire writes: a codec of one's own, the conformance suite on it, and a Session over
// UCX that uses it.
#include <tightwire/testing/codec_conformance.hpp>
#include <tightwire/tightwire.hpp>

/// Seven levels up to the largest magnitude of a block, in 3 bits.
struct SevenLevels {
  static constexpr std::string_view name = "seven_levels";
  static constexpr int bits = 3;
  static constexpr float accuracy = 0.26f;
  int block = 64;
  using Stat = tightwire::AbsMax;
  using Param = float;
  using Scale = float;
  static Param param(Stat stat) {
    if (!stat.finite()) return tightwire::detail::from_bits(0x7fc00000u);
    return stat.bits == 0 ? 0.0f : std::max(stat.value() / 3.0f, 0x1p-126f);
  }
  static Scale scale(Param step) { return step; }
  static int code(float x, Scale step) {
    const float t = step >= 0x1p-126f ? x / step : 0.0f;
    return tightwire::detail::nearest(t < 3.0f ? t > -3.0f ? t : -3.0f : 3.0f);
  }
  static float value(int code, Scale step) { return static_cast<float>(code) * step; }
  static constexpr bool lossless(tightwire::ElementType) { return false; }
};

namespace tightwire::testing {
INSTANTIATE_TEST_SUITE_P(Mine, CodecConformance, ::testing::Values(subject<SevenLevels>()), CodecName{});
}

/// One rank alone. 0.1 has the code of 0 beside 1.0, and the residuals bring it through.
TEST(SevenLevels, InASession) {
  tightwire::Session session(tightwire::ucx::open(tightwire::Rendezvous{}), {.codec = SevenLevels{}});
  session.add("weight", {64, 64});
  session.seal();
  double sum = 0;
  for (int step = 0; step < 50; ++step) {
    std::vector<float> gradient(64 * 64, 0.1f);
    gradient[0] = 1.0f;
    session.all_reduce(std::span<float>(gradient));
    EXPECT_TRUE(session.commit());
    if (step == 0) EXPECT_EQ(gradient[1], 0.0f);
    sum += gradient[1];
  }
  EXPECT_NEAR(sum / 50, 0.1, 0.01);
}
