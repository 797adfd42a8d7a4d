#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <tightwire/host/level.hpp>
#include <tightwire/host/make_noise.hpp>
#include <tightwire/noise.hpp>

namespace tightwire::testing::noise_test {
namespace {

/// The known answers that the authors publish with Random123.
TEST(Philox, KnownAnswers) {
  const auto expect = [](const std::uint32_t(&counter)[4], std::uint32_t key0, std::uint32_t key1,
                         const std::uint32_t(&words)[4]) {
    const auto random = detail::Philox::at(counter, key0, key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(random.words[i], words[i]) << i;
  };
  expect({0, 0, 0, 0}, 0, 0, {0x5f6fb709u, 0x0d893f64u, 0x4f121f81u, 0x4f730a48u});
  expect({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, 0xffffffffu, 0xffffffffu,
         {0x5207ddc2u, 0x45165e59u, 0x4d8ee751u, 0x8c52f662u});
  expect({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u,
         {0x4dfccabau, 0x190a87f0u, 0xc47362bau, 0xb6b5242au});
}

TEST(Noise, IsTheSameAtEveryLevelAndPlace) {
  std::vector<float> memory(5000);
  // Past 2^32 calls too, where the counter's second word comes in.
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{48}, (std::uint64_t{1} << 35) - 128}) {
    const Noise noise{0x123456789abcdefu, 7, 3, 2, first};
    for (const host::Level level : {host::Level::baseline, host::Level::avx2, host::Level::avx512}) {
      if (level > host::supported_level()) continue;
      for (const std::size_t begin : {0u, 16u, 64u, 240u}) {
        const float* made = host::noise_of(level, &noise, begin, 1008, memory.data());
        for (std::size_t i = 0; i < 1008; ++i)
          ASSERT_EQ(made[i], detail::noise_at(noise, first + begin + i)) << to_string(level) << " element " << i;
      }
    }
  }
}

TEST(Noise, LiesEvenlyAndStrictlyWithinAHalf) {
  EXPECT_EQ(detail::centered(0), -0.5f + 0x1p-17f);
  EXPECT_EQ(detail::centered(65535), 0.5f - 0x1p-17f);
  EXPECT_EQ(detail::centered(32768) - detail::centered(32767), 0x1p-16f);
}

/// Seeds, uses, parameters and streams each make other numbers: 10,000 pairs correlate by less than five deviations.
TEST(Noise, EveryArgumentCounts) {
  const Noise base{1, 1, 1, 1, 0};
  for (const Noise& other : {Noise{2, 1, 1, 1, 0}, Noise{std::uint64_t{1} << 32 | 1, 1, 1, 1, 0}, Noise{1, 2, 1, 1, 0},
                             Noise{1, 1, 2, 1, 0}, Noise{1, 1, 1, 2, 0}, Noise{1, 1, 1, 0, 0}}) {
    double product = 0;
    for (std::uint64_t i = 0; i < 10'000; ++i)
      product += double{detail::noise_at(base, i)} * double{detail::noise_at(other, i)};
    // The product of two has a deviation of 1/12.
    EXPECT_LT(std::abs(product), 5 * std::sqrt(10'000.0) / 12);
  }
}

}  // namespace
}  // namespace tightwire::testing::noise_test
