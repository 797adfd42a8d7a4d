// Who owns which elements, and the size of every message.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/plan.hpp>

namespace tightwire::testing::plan_test {
namespace {

/// Knows sizes and cannot encode: a plan must not need more.
class SizesOnly final : public Coder {
 public:
  SizesOnly(std::size_t block, bool lossless) : block_(block), lossless_(lossless) {}
  std::string spec() const override { return "sizes"; }
  std::size_t block() const noexcept override { return block_; }
  /// Two bytes per block and one per element, rounded up to 16.
  std::size_t wire_bytes(std::size_t count) const noexcept override {
    return ((count + block_ - 1) / block_ * 2 + count + 15) / 16 * 16;
  }
  bool lossless(ElementType) const noexcept override { return lossless_; }
  std::uint64_t encode(ElementType, const Encode&) const override { throw Error(Errc::unsupported, "sizes only"); }
  NonFinite combine(ElementType, const Combine&) const override { throw Error(Errc::unsupported, "sizes only"); }
  void decode(ElementType, const Decode&) const override { throw Error(Errc::unsupported, "sizes only"); }

 private:
  std::size_t block_;
  bool lossless_;
};

PlannedParameter parameter(std::size_t count, std::size_t block, bool lossless = false,
                           ElementType type = ElementType::f32) {
  return {count, type, std::make_shared<SizesOnly>(block, lossless)};
}

/// Every element of every parameter exactly once, in order, cut at blocks only; sizes and residual places consistent.
void expect_sound(const BucketPlan& plan, const std::vector<PlannedParameter>& parameters, int ranks) {
  std::vector<std::size_t> next(parameters.size(), 0), owned(plan.owned.size(), 0);
  const std::size_t shares = plan.algorithm == Algorithm::two_shot ? static_cast<std::size_t>(ranks) : 1;
  for (const Chunk& chunk : plan.chunks) {
    ASSERT_EQ(chunk.shares.size(), shares);
    std::size_t elements = 0;
    for (std::size_t rank = 0; rank < shares; ++rank) {
      const Share& share = chunk.shares[rank];
      std::size_t payload = 0;
      for (const Slice& slice : share.slices) {
        const PlannedParameter& p = parameters[slice.parameter];
        ASSERT_EQ(slice.begin, next[slice.parameter]);
        ASSERT_EQ(slice.begin % p.coder->block(), 0u);
        ASSERT_GT(slice.count, 0u);
        next[slice.parameter] += slice.count;
        ASSERT_TRUE(slice.count % p.coder->block() == 0 || next[slice.parameter] == p.count);
        ASSERT_EQ(slice.wire_at, payload);
        payload += p.coder->wire_bytes(slice.count);
        if (!p.coder->lossless(p.type)) {
          ASSERT_EQ(slice.error_at, owned[rank]);
          owned[rank] += slice.count;
        }
        elements += slice.count;
      }
      ASSERT_EQ(share.payload_bytes, payload);
      ASSERT_EQ(share.frame_bytes(), payload == 0 ? 0 : payload + 64);
    }
    ASSERT_GT(elements, 0u) << "a chunk without elements";
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) ASSERT_EQ(next[p], parameters[p].count);
  ASSERT_EQ(plan.owned, owned);
}

TEST(Plan, CoversEveryElementOnceAndCutsAtBlocks) {
  std::mt19937_64 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<PlannedParameter> parameters;
    for (std::size_t p = below(7); p-- > 0;)
      parameters.push_back(parameter(below(4) == 0 ? below(3) : below(5000), 16u << below(5), below(4) == 0));
    const int ranks = 1 + static_cast<int>(below(9));
    PlanOptions options;
    options.algorithm = below(2) == 0 ? Algorithm::two_shot : Algorithm::one_shot;
    options.share_elements = below(3000);
    const BucketPlan plan = make_plan(parameters, ranks, options);
    SCOPED_TRACE("trial " + std::to_string(trial));
    ASSERT_NO_FATAL_FAILURE(expect_sound(plan, parameters, ranks));
  }
}

TEST(Plan, NothingToReduceIsNothingToSend) {
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot, Algorithm::automatic}) {
    const BucketPlan none = make_plan({}, 3, {.algorithm = algorithm});
    EXPECT_TRUE(none.chunks.empty());
    const std::vector<PlannedParameter> empty = {parameter(0, 64), parameter(0, 16)};
    const BucketPlan plan = make_plan(empty, 3, {.algorithm = algorithm});
    EXPECT_TRUE(plan.chunks.empty());
    EXPECT_EQ(plan.wire_bytes(0), 0u);
  }
}

TEST(Plan, OneRankSendsNothing) {
  const std::vector<PlannedParameter> parameters = {parameter(100000, 64)};
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot})
    EXPECT_EQ(make_plan(parameters, 1, {.algorithm = algorithm}).wire_bytes(0), 0u);
}

TEST(Plan, BytesFollowTheFormula) {
  // 3 ranks, 10 blocks of 64: shares of 256, 192 and 192 elements (cuts at 640/3 and 1280/3, up to the next block).
  const std::vector<PlannedParameter> parameters = {parameter(640, 64)};
  const BucketPlan two = make_plan(parameters, 3, {.algorithm = Algorithm::two_shot});
  ASSERT_EQ(two.chunks.size(), 1u);
  const std::size_t a = 64 + 272, b = 64 + 208,
                    c = 64 + 208;  // 4 or 3 blocks: 8 or 6 bytes, rounded up with the elements
  EXPECT_EQ(two.wire_bytes(0), 2 * a + b + c);
  EXPECT_EQ(two.wire_bytes(1), 2 * b + a + c);
  EXPECT_EQ(two.wire_bytes(2), 2 * c + a + b);
  const BucketPlan one = make_plan(parameters, 3, {.algorithm = Algorithm::one_shot});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(one.wire_bytes(rank), 2u * (64 + 672));
  EXPECT_EQ(one.element_bytes, 2560u);
}

TEST(Plan, FewerBlocksThanRanksLeaveSharesEmpty) {
  const std::vector<PlannedParameter> parameters = {parameter(100, 64)};
  const BucketPlan plan = make_plan(parameters, 5, {.algorithm = Algorithm::two_shot});
  ASSERT_NO_FATAL_FAILURE(expect_sound(plan, parameters, 5));
  ASSERT_EQ(plan.chunks.size(), 1u);
  std::size_t empty = 0;
  for (const Share& share : plan.chunks[0].shares) empty += share.frame_bytes() == 0 ? 1 : 0;
  EXPECT_EQ(empty, 3u);
}

TEST(Plan, SharesDifferByABlockAtMost) {
  for (const int ranks : {2, 3, 5, 8}) {
    const std::vector<PlannedParameter> parameters = {parameter(1 << 20, 256)};
    const BucketPlan plan = make_plan(parameters, ranks, {.algorithm = Algorithm::two_shot});
    for (const Chunk& chunk : plan.chunks) {
      std::size_t least = SIZE_MAX, most = 0;
      for (const Share& share : chunk.shares) {
        const std::size_t count = share.slices.empty() ? 0 : share.slices[0].count;
        least = std::min(least, count);
        most = std::max(most, count);
      }
      EXPECT_LE(most - least, 256u) << ranks << " ranks";
    }
  }
}

TEST(Plan, AutomaticTakesOneShotUpToItsLimitOfEncodedBytes) {
  const std::vector<PlannedParameter> parameters = {parameter(1008, 1008)};  // 1024 bytes encoded
  EXPECT_EQ(make_plan(parameters, 4, {.one_shot_bytes = 1024}).algorithm, Algorithm::one_shot);
  EXPECT_EQ(make_plan(parameters, 4, {.one_shot_bytes = 1023}).algorithm, Algorithm::two_shot);
}

TEST(Plan, AutomaticTakesOneShotOnlyWhileItSendsNotMuchMore) {
  const auto takes = [](std::size_t count, std::size_t block, int ranks, const PlanOptions& options = {}) {
    const std::vector<PlannedParameter> parameters = {parameter(count, block)};
    return make_plan(parameters, ranks, options).algorithm;
  };
  for (const int ranks : {2, 8, 16}) EXPECT_EQ(takes(15'000, 256, ranks), Algorithm::one_shot) << ranks;
  for (const int ranks : {32, 1024, 16384}) EXPECT_EQ(takes(15'000, 256, ranks), Algorithm::two_shot) << ranks;
  // Of a single block the owner sends as much in two rounds.
  EXPECT_EQ(takes(1000, 1008, 16384), Algorithm::one_shot);
  EXPECT_EQ(takes(1000, 64, 16384), Algorithm::two_shot);
  EXPECT_EQ(takes(15'000, 256, 1024, {.one_shot_excess = std::size_t{1} << 30}), Algorithm::one_shot);
}

TEST(Plan, ShareLengthLeftOpenDependsOnRanksAndBytes) {
  const std::vector<PlannedParameter> parameters = {parameter(3'000'000, 256)};
  for (const auto& [ranks, elements] : std::vector<std::pair<int, std::size_t>>{
           {1, 262144}, {2, 131072}, {3, 86016}, {7, 36864}, {16, 16384}, {64, 16384}}) {
    EXPECT_EQ(open_share_length(ranks, 1000, 1000), elements) << ranks;
    const BucketPlan plan = make_plan(parameters, ranks, {.algorithm = Algorithm::two_shot});
    const std::size_t first = plan.chunks[0].shares[0].slices[0].count;
    EXPECT_EQ(first, open_share_length(ranks, 3'000'000, parameters[0].coder->wire_bytes(3'000'000))) << ranks;
  }
  EXPECT_EQ(open_share_length(2, 1000, 4000), 65536u) << "fp32: 256 KiB";
  EXPECT_EQ(open_share_length(2, 0, 0), 0u);
  EXPECT_EQ(make_plan({}, 2, {}).chunks.size(), 0u);
}

TEST(Plan, CountsBeyond32Bits) {
  const std::size_t count = (std::size_t{1} << 31) + 7;
  const std::vector<PlannedParameter> parameters = {parameter(5, 16), parameter(count, 64), parameter(count, 256)};
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot}) {
    const BucketPlan plan = make_plan(parameters, 8, {.algorithm = algorithm, .share_elements = std::size_t{1} << 22});
    ASSERT_NO_FATAL_FAILURE(expect_sound(plan, parameters, 8));
    EXPECT_EQ(plan.element_bytes, 4 * (2 * count + 5));
    EXPECT_GT(plan.wire_bytes(0), std::uint64_t{2} * count);
  }
}

TEST(Plan, ShareLengthsBeyondTheBucketGiveOneChunk) {
  const std::vector<PlannedParameter> parameters = {parameter(5000, 64)};
  for (const std::size_t share : {std::size_t{5000}, SIZE_MAX / 3 + 1, SIZE_MAX / 2, SIZE_MAX - 1, SIZE_MAX}) {
    const BucketPlan plan = make_plan(parameters, 3, {.algorithm = Algorithm::two_shot, .share_elements = share});
    ASSERT_NO_FATAL_FAILURE(expect_sound(plan, parameters, 3));
    EXPECT_EQ(plan.chunks.size(), 1u) << share;
  }
}

}  // namespace
}  // namespace tightwire::testing::plan_test
