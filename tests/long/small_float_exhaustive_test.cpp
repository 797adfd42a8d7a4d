#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include <tightwire/codec/small_float.hpp>
#include <tightwire/detail/flush_to_zero.hpp>

#include "unit/small_float_table.hpp"

namespace tightwire::testing::small_float_exhaustive_test {
namespace {

/// The codes of neighbouring fp32 patterns.
template <class Format>
[[gnu::noinline]] void encode(std::uint32_t begin, std::vector<int>& codes) {
  for (std::uint32_t i = 0; i < codes.size(); ++i) codes[i] = Format::nearest_code(detail::from_bits(begin + i));
}

/// Every magnitude of fp32 in order: the code goes up by one where the definition says so, and nowhere else. The floats
/// of one code are a run; both ends of a run are checked against the definition, and that all between are equal. Their
/// negatives have the same code with the sign extended, and none has another while subnormals are flushed.
template <class Format>
void compare_all() {
  const SmallFloatTable table = table_of<Format>();
  constexpr std::uint32_t kEnd = 0x7f800000u, kBatch = 1u << 16;
  int last = Format::nearest_code(0.0f);
  ASSERT_EQ(last, 0);
  std::vector<int> codes(kBatch), negative(kBatch), flushed(kBatch);
  for (std::uint32_t begin = 0; begin < kEnd; begin += kBatch) {
    encode<Format>(begin, codes);
    encode<Format>(begin | detail::kSignMask, negative);
    {
      const detail::FlushToZero mode;
      encode<Format>(begin, flushed);
    }
    ASSERT_EQ(flushed, codes) << "from fp32 bits " << begin;
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      ASSERT_EQ(negative[i], codes[i] | ~Format::magnitude_mask) << "minus fp32 bits " << begin + i;
      if (codes[i] == last) continue;
      const auto before = static_cast<std::size_t>(last), here = static_cast<std::size_t>(codes[i]);
      ASSERT_EQ(here, table.nearest(double{detail::from_bits(begin + i)})) << "fp32 bits " << begin + i;
      ASSERT_EQ(before, table.nearest(double{detail::from_bits(begin + i - 1)})) << "fp32 bits " << begin + i - 1;
      ASSERT_EQ(here, before + 1) << "codes go up one by one";
      last = codes[i];
    }
  }
  EXPECT_EQ(static_cast<std::size_t>(last) + 1, table.finite) << "the largest is reached and kept";
}

TEST(SmallFloatExhaustive, EveryFloatToE4M3AndE5M2) {
  std::thread other([] { compare_all<detail::E5M2>(); });
  compare_all<detail::E4M3>();
  other.join();
}
TEST(SmallFloatExhaustive, EveryFloatToE2M1AndPowers) {
  std::thread other([] { compare_all<detail::E2M1>(); });
  compare_all<detail::Powers<4>>();
  other.join();
}

}  // namespace
}  // namespace tightwire::testing::small_float_exhaustive_test
