// The residuals as a transaction.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <tightwire/error_memory.hpp>

namespace tightwire::testing::error_memory_test {
namespace {

/// Adds `by` to every element the way a codec would: read before, write after.
void use(ErrorMemory& memory, ErrorMemory::Region region, std::size_t count, float by) {
  const Residual residual = memory.open(region);
  ASSERT_TRUE(residual);
  for (std::size_t i = 0; i < count; ++i) residual.after[i] = residual.before[i] + by;
}
std::vector<float> committed(const ErrorMemory& memory, ErrorMemory::Region region) { return memory.committed(region); }

TEST(ErrorMemory, StartsAtZero) {
  for (const bool rollback : {false, true}) {
    ErrorMemory memory;
    const auto a = memory.add(5), b = memory.add(100);
    memory.allocate(rollback);
    EXPECT_EQ(committed(memory, a), std::vector<float>(5, 0.0f));
    EXPECT_EQ(committed(memory, b), std::vector<float>(100, 0.0f));
    EXPECT_EQ(memory.can_roll_back(), rollback);
  }
}

TEST(ErrorMemory, CommitKeepsAndRollbackForgets) {
  ErrorMemory memory;
  const auto a = memory.add(7), b = memory.add(9);
  memory.allocate(true);
  use(memory, a, 7, 1.0f);
  use(memory, b, 9, 10.0f);
  EXPECT_EQ(committed(memory, a), std::vector<float>(7, 0.0f)) << "not before the commit";
  memory.commit();
  EXPECT_EQ(committed(memory, a), std::vector<float>(7, 1.0f));
  EXPECT_EQ(committed(memory, b), std::vector<float>(9, 10.0f));

  use(memory, a, 7, 5.0f);
  memory.rollback();
  EXPECT_EQ(committed(memory, a), std::vector<float>(7, 1.0f));
  use(memory, a, 7, 2.0f);  // begins at what was committed, not at what was rolled back
  memory.commit();
  EXPECT_EQ(committed(memory, a), std::vector<float>(7, 3.0f));
}

TEST(ErrorMemory, ARegionThatTheStepDidNotUseKeepsItsValue) {
  ErrorMemory memory;
  const auto a = memory.add(4), b = memory.add(4);
  memory.allocate(true);
  use(memory, a, 4, 1.0f);
  use(memory, b, 4, 2.0f);
  memory.commit();
  for (int step = 0; step < 3; ++step) {
    use(memory, b, 4, 1.0f);
    memory.commit();
    EXPECT_EQ(committed(memory, a), std::vector<float>(4, 1.0f));
    EXPECT_EQ(committed(memory, b), std::vector<float>(4, 3.0f + static_cast<float>(step)));
  }
}

TEST(ErrorMemory, FurtherUsesInAStepGoOnWhereTheLastEnded) {
  ErrorMemory memory;
  const auto a = memory.add(4);
  memory.allocate(true);
  for (int i = 0; i < 3; ++i) use(memory, a, 4, 1.0f);
  memory.rollback();
  EXPECT_EQ(committed(memory, a), std::vector<float>(4, 0.0f));
  for (int i = 0; i < 3; ++i) use(memory, a, 4, 1.0f);
  memory.commit();
  EXPECT_EQ(committed(memory, a), std::vector<float>(4, 3.0f));
}

TEST(ErrorMemory, OneCopyIsUpdatedInPlaceAndTakesHalfTheMemory) {
  ErrorMemory twice, once;
  for (ErrorMemory* memory : {&twice, &once}) memory->add(1000);
  twice.allocate(true);
  once.allocate(false);
  EXPECT_EQ(twice.bytes(), 2 * once.bytes());
  const Residual residual = once.open(0);
  EXPECT_EQ(residual.before, residual.after);
  use(once, 0, 1000, 1.0f);
  EXPECT_EQ(committed(once, 0)[999], 1.0f);
  once.commit();
  use(once, 0, 1000, 1.0f);
  EXPECT_EQ(committed(once, 0)[0], 2.0f);
}

TEST(ErrorMemory, InBf16TakesHalfTheMemoryAndIsATransactionToo) {
  ErrorMemory half(ElementType::bf16), whole;
  for (ErrorMemory* memory : {&half, &whole}) memory->add(100'000), memory->allocate(true);
  EXPECT_LT(half.bytes(), whole.bytes() * 52 / 100);
  const auto put = [&](std::uint16_t bits) {
    const Residual residual = half.open(0);
    ASSERT_TRUE(residual.in_bf16());
    ASSERT_EQ(residual.after, nullptr);
    residual.bf16.after[99'999] = static_cast<std::uint16_t>(residual.bf16.before[99'999] + bits);
  };
  put(0x4000);  // 2
  EXPECT_EQ(half.committed(0)[99'999], 0.0f);
  half.commit();
  EXPECT_EQ(half.committed(0)[99'999], 2.0f);
  put(0x0100);
  half.rollback();
  EXPECT_EQ(half.committed(0)[99'999], 2.0f);
  half.scale(1.0f + 0x1p-9f);  // to nearest: back to 2
  EXPECT_EQ(half.committed(0)[99'999], 2.0f);
  half.scale(0.25f);
  EXPECT_EQ(half.committed(0)[99'999], 0.5f);
}

TEST(ErrorMemory, RegionsDoNotOverlapAndAreAligned) {
  ErrorMemory memory;
  std::vector<std::size_t> counts = {1, 15, 16, 17, 0, 1000, 3};
  for (const std::size_t count : counts) memory.add(count);
  memory.allocate(true);
  std::vector<std::pair<const float*, std::size_t>> spans;
  for (std::size_t region = 0; region < counts.size(); ++region) {
    const Residual residual = memory.open(region);
    if (counts[region] == 0) {
      EXPECT_FALSE(residual);
      continue;
    }
    for (const float* at : {residual.before, static_cast<const float*>(residual.after)}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % 64, 0u);
      spans.emplace_back(at, counts[region]);
    }
  }
  std::sort(spans.begin(), spans.end());
  for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_GE(spans[i].first, spans[i - 1].first + spans[i - 1].second);
}

}  // namespace
}  // namespace tightwire::testing::error_memory_test
