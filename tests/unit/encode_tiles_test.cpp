#include <gtest/gtest.h>

#include <cfloat>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <tightwire/core_codecs.hpp>

#include "support/guarded.hpp"

// Slices of many tiles, which better instruction sets encode in one loop and the plainest one tile by tile: the same
// wire, residual and count of non-finite elements, wherever that loop has to stop and go on.

namespace tightwire::testing::encode_tiles_test {
namespace {

enum class Values { ordinary, with_nonfinite, clamped, huge };
enum class Feedback { none, fp32, bf16 };

struct Case {
  Values values = Values::ordinary;
  Feedback feedback = Feedback::fp32;
  bool in_place = true;
  bool past_cache = false;
  bool stochastic = false;
  std::size_t first = 0;   ///< place of the slice in its parameter
  std::size_t offset = 0;  ///< bytes by which buffers are off a line
  int block = 0;           ///< 0: the codec's own
};

constexpr std::size_t kCount = 6 * 512 + 4096 + 37;
constexpr std::size_t kGuarded = 12;  // buffers start 128 bytes and this in

std::vector<float> values_of(Values kind, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> gaussian;
  std::vector<float> x(kCount);
  for (float& element : x) element = gaussian(random) * 1e-3f;
  if (kind == Values::with_nonfinite) {
    // In the first tile, in two that follow each other, and in the last whole one.
    for (const std::size_t at : {3u, 1030u, 1540u, 6 * 512u + 1u}) x[at] = std::numeric_limits<float>::quiet_NaN();
    x[2600] = -std::numeric_limits<float>::infinity();
  }
  // Of -s and s the signed codecs have a code for one.
  if (kind == Values::clamped)
    for (std::size_t i = 0; i < kCount; i += 5) x[i] = i % 2 == 0 ? 0.004f : -0.004f;
  // Steps stop short of what would overflow, so that the largest elements are beyond the last code.
  if (kind == Values::huge)
    for (std::size_t i = 700; i < kCount; i += 3) x[i] = i % 2 == 0 ? FLT_MAX : -FLT_MAX;
  return x;
}

struct Result {
  std::vector<std::byte> wire, residual;
  std::uint64_t nonfinite = 0;
};

Result encode(const Coder& coder, const Case& of, const std::vector<float>& x) {
  std::mt19937 random(5);
  std::normal_distribution<float> gaussian;
  const bool bf16 = of.feedback == Feedback::bf16;
  const std::size_t bytes = kCount * (bf16 ? 2 : 4);
  std::vector<float> before(kCount);
  for (float& element : before) element = gaussian(random) * 1e-5f;
  std::vector<std::uint16_t> before_bf16(kCount);
  for (std::size_t i = 0; i < kCount; ++i) before_bf16[i] = detail::to_bf16(before[i]);

  Guarded data(kCount * 4, kGuarded + of.offset, 0x5a), wire(coder.wire_bytes(kCount), kGuarded + of.offset, 0x33);
  Guarded from(bytes, kGuarded + of.offset, 0x66), to(bytes, kGuarded + of.offset, 0x77);
  data.set(x);
  bf16 ? from.set(before_bf16) : from.set(before);
  Guarded& after = of.in_place ? from : to;
  const Noise noise{.seed = 1, .use = 2, .parameter = 3, .stream = 4, .first = of.first};
  Residual residual{.past_cache = of.past_cache && !of.in_place};
  if (bf16)
    residual.bf16 = {reinterpret_cast<const std::uint16_t*>(from.data()),
                     reinterpret_cast<std::uint16_t*>(after.data()), noise};
  else if (of.feedback == Feedback::fp32)
    residual.before = from.floats(), residual.after = after.floats();

  Result result;
  result.nonfinite = coder.encode(
      ElementType::f32, {data.data(), residual, kCount, wire.data(), of.past_cache, of.stochastic ? &noise : nullptr});
  result.wire = wire.bytes();
  result.residual = after.bytes();
  return result;
}

void check(const Case& of) {
  const std::vector<float> x = values_of(of.values, 9);
  for (const BuiltinCodec& codec : builtin_codecs()) {
    CodecSettings settings;
    if (of.block != 0) settings.block = of.block;
    const Result expected = encode(*codec.make(settings, host::Level::baseline), of, x);
    EXPECT_TRUE(of.values != Values::with_nonfinite || expected.nonfinite != 0) << codec.name;
    for (const host::Level level : {host::Level::avx2, host::Level::avx512}) {
      if (level > host::supported_level()) continue;
      SCOPED_TRACE(std::string(codec.name) + " " + std::string(to_string(level)));
      const Result actual = encode(*codec.make(settings, level), of, x);
      EXPECT_EQ(actual.nonfinite, expected.nonfinite);
      expect_same(actual.wire, expected.wire, "wire");
      if (of.feedback != Feedback::none) expect_same(actual.residual, expected.residual, "residual");
    }
  }
}

constexpr Values kValues[] = {Values::ordinary, Values::with_nonfinite, Values::clamped, Values::huge};

TEST(EncodeTiles, WithoutFeedback) {
  for (const Values values : kValues) check({.values = values, .feedback = Feedback::none});
}
TEST(EncodeTiles, WithFeedbackInPlace) {
  for (const Values values : kValues) check({.values = values});
}
TEST(EncodeTiles, WithFeedbackToAnotherBuffer) {
  for (const Values values : kValues) check({.values = values, .in_place = false});
}
TEST(EncodeTiles, PastTheCaches) {
  for (const std::size_t offset : {0u, 4u, 16u, 52u}) {
    check({.in_place = false, .past_cache = true, .offset = offset});
    check({.feedback = Feedback::bf16, .in_place = false, .past_cache = true, .offset = offset});
  }
  check({.values = Values::with_nonfinite, .past_cache = true, .offset = 52});
}
TEST(EncodeTiles, Stochastically) {
  for (const Values values : kValues)
    for (const std::size_t first : {0u, 256u}) check({.values = values, .stochastic = true, .first = first});
}
/// The random bits of a residual repeat within runs of 4096 elements of the parameter, and change with each.
TEST(EncodeTiles, WithResidualsInBf16) {
  for (const Values values : kValues)
    for (const std::size_t first : {0u, 256u, 4096u - 512u})
      check({.values = values, .feedback = Feedback::bf16, .in_place = first == 0, .first = first});
  check({.feedback = Feedback::bf16, .stochastic = true, .first = 256});
  // Tiles of ten blocks, which begin anywhere in a group of random bits.
  check({.feedback = Feedback::bf16, .first = 96, .block = 48});
}

}  // namespace
}  // namespace tightwire::testing::encode_tiles_test
