// The cost model: a hand-computed example, how time follows bytes, ranks and rates, and that it counts what plans send.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <tightwire/calibration.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/simulation.hpp>

#include "forecast.hpp"

namespace tightwire {
namespace {

constexpr double kMegabyte = 1e6;

std::vector<Parameter> matrix(std::int64_t rows, std::int64_t columns) {
  return {{.name = "matrix", .shape = {rows, columns}}};
}
SessionOptions with(const std::string& codec) {
  SessionOptions options;
  options.codec = parse_codec(codec);
  return options;
}
/// Codecs that run at 10 GB/s in every part.
CodecCosts even_costs() {
  CodecCosts costs;
  for (const char* codec : {"exact", "bf16", "int8", "int4"})
    costs.add(parse_codec(codec).coder(ElementType::f32)->spec(), kMegabyte, {1e-10, 1e-10, 1e-10});
  for (const char* codec : {"topk:ratio=0.01", "powersgd:rank=4"})
    costs.add(parse_codec(codec).spec(), kMegabyte, {3e-10, 0, 0});
  return costs;
}
Cluster cluster(int ranks, int per_node, double gbit) {
  const LinkCost across{20e-6, 1e-6, gbit / 8e-9, 1}, inside{2e-6, 1e-7, 1e10, 0.5};
  return {ranks, per_node, inside, across};
}
double seconds(const std::string& codec, const Cluster& at, std::int64_t rows = 4096) {
  double sum = 0;
  for (const BucketLoad& load : simulate(with(codec), matrix(rows, 1024), at.ranks, at.per_node))
    sum += seconds_of(load, at, even_costs());
  return sum;
}

TEST(CostModel, AgreesWithAnExampleByHand) {
  Stage stage;
  stage.rounds = 2;
  stage.chunks = 4;
  stage.bucket_bytes = 4 * kMegabyte;
  stage.across = {6, 3 * kMegabyte};
  stage.work = {{"c", 2 * kMegabyte, 4 * kMegabyte, kMegabyte}};
  CodecCosts costs;
  costs.add("c", kMegabyte, {2e-9, 1e-9, 1e-9});
  Cluster here{4, 2, {}, {50e-6, 10e-6, 1e9, 0.8}};
  const StageTime time = time_of(stage, here, costs);
  EXPECT_DOUBLE_EQ(time.latency, 100e-6);
  EXPECT_DOUBLE_EQ(time.across, 60e-6 + 2 * 3e6 / 1e9);  // two ranks share the node's link
  EXPECT_DOUBLE_EQ(time.codec, 4e-3 + 4e-3 + 1e-3);
  // The codec takes longer; of the wire 0.8 x 3/4 hides.
  EXPECT_DOUBLE_EQ(time.seconds, 100e-6 + 9e-3 + 6.06e-3 * (1 - 0.8 * 0.75));
}

TEST(CostModel, WhatGoesThroughMemoryTakesTheCodecsTimeAndGoesOnBesideTheLinkBetweenNodes) {
  Stage stage;
  stage.chunks = 4;
  stage.inside = {1, 8 * kMegabyte};
  stage.across = {1, 3 * kMegabyte};
  stage.work = {{"c", kMegabyte}};
  CodecCosts costs;
  costs.add("c", kMegabyte, {2e-9, 0, 0});
  const Cluster here{4, 2, {0, 0, 4e9, 0}, {0, 0, 1e9, 1}};
  const StageTime time = time_of(stage, here, costs);
  EXPECT_DOUBLE_EQ(time.inside, 2e-3);
  EXPECT_DOUBLE_EQ(time.across, 6e-3);
  EXPECT_DOUBLE_EQ(time.seconds, 6e-3 + (2e-3 + 2e-3) / 4);
}

TEST(CostModel, AWindowOfChunksBeginsWhenTheOneBeforeHasArrived) {
  Stage stage;
  stage.rounds = 2;
  stage.chunks = 9;
  stage.windows = 3;
  stage.across = {9, 1000};
  const Cluster here{2, 1, {}, {50e-6, 0, 1e9, 1}};
  EXPECT_DOUBLE_EQ(time_of(stage, here, {}).seconds, 3 * 2 * 50e-6);
  stage.across.bytes = 1e6;  // takes longer anyway
  EXPECT_DOUBLE_EQ(time_of(stage, here, {}).seconds, 2 * 50e-6 + 1e-3);
}

TEST(CostModel, AddingCostsWhatIsLeftOfFormingSumsWithoutTheirEncodings) {
  const BucketLoad load = simulate(with("int8"), matrix(4096, 1024), 2, 1).front();
  const double half = 4.0 * 4096 * 512;
  const CodecCost cost =
      detail::cost_of(parse_codec("int8"), load,
                      {.encode_seconds = 2e-9 * half, .combine_seconds = 5e-9 * half, .decode_seconds = 0.5e-9 * half});
  EXPECT_NEAR(cost.encode_seconds, 2e-9, 1e-15);
  EXPECT_NEAR(cost.combine_seconds, 1e-9, 1e-15);  // 5 less two encodings
  EXPECT_NEAR(cost.decode_seconds, 0.5e-9, 1e-15);
  const CodecCost fused =
      detail::cost_of(parse_codec("int8"), load,
                      {.encode_seconds = 2e-9 * half, .combine_seconds = 3e-9 * half, .decode_seconds = 0.5e-9 * half});
  EXPECT_NEAR(fused.combine_seconds, 0.25e-9, 1e-15);
}

TEST(CostModel, CostsBetweenSizesAreInterpolatedAndBeyondHeld) {
  CodecCosts costs;
  costs.add("c", 1e4, {1, 10, 100});
  costs.add("c", 1e6, {3, 30, 300});
  EXPECT_DOUBLE_EQ(costs.at("c", 1e5).encode_seconds, 2);
  EXPECT_DOUBLE_EQ(costs.at("c", 1e5).combine_seconds, 20);
  EXPECT_DOUBLE_EQ(costs.at("c", 1).decode_seconds, 100);
  EXPECT_DOUBLE_EQ(costs.at("c", 1e9).decode_seconds, 300);
  EXPECT_THROW(costs.at("d", 1), Error);
}

TEST(CostModel, TimeRisesWithBytesAndFallsWithTheRate) {
  for (const char* codec : {"exact", "int8", "int4", "topk:ratio=0.01", "powersgd:rank=4"}) {
    double before = 0;
    for (const std::int64_t rows : {64, 256, 1024, 4096, 16384}) {
      const double now = seconds(codec, cluster(8, 1, 10), rows);
      EXPECT_GT(now, before) << codec << " " << rows;
      before = now;
    }
    before = 1e9;
    for (const double gbit : {0.1, 1.0, 10.0, 100.0}) {
      const double now = seconds(codec, cluster(8, 1, gbit));
      EXPECT_LE(now, before) << codec << " " << gbit;
      before = now;
    }
  }
}

TEST(CostModel, CompressionPaysOnSlowLinksAndNotOnFastOnes) {
  const auto gain = [](double gbit) {
    return seconds("exact", cluster(8, 1, gbit)) / seconds("int8", cluster(8, 1, gbit));
  };
  EXPECT_GT(gain(1), 3.8);  // nearly the ratio of bytes
  EXPECT_LT(gain(1000), 1.05);
  for (double gbit = 1; gbit < 1000; gbit *= 2) EXPECT_GE(gain(gbit) + 1e-9, gain(2 * gbit)) << gbit;
}

TEST(CostModel, ALaterBucketWaitsForTheOneBeforeAndForItsGradients) {
  // Ready at 15, 20, 25, 30 ms of 30.
  const StepTime hidden = step_time({1e-3, 1e-3, 1e-3, 1e-3}, 30e-3);
  EXPECT_DOUBLE_EQ(hidden.seconds, 31e-3);
  EXPECT_NEAR(hidden.communication_share(), 1.0 / 31, 1e-12);
  const StepTime behind = step_time({10e-3, 10e-3, 10e-3, 10e-3}, 30e-3);
  EXPECT_DOUBLE_EQ(behind.seconds, 55e-3);
  EXPECT_DOUBLE_EQ(step_time({5e-3, 6e-3}, 0).seconds, 11e-3);
}

TEST(Simulation, CountsTheBytesAndMessagesOfThePlanItself) {
  // 4 ranks, exact: two-shot, each chunk a contribution to 3 owners and a result to 3 peers, of a quarter each.
  const auto loads = simulate(with("exact"), matrix(4096, 1024), 4, 1);
  ASSERT_EQ(loads.size(), 1u);
  const Sent sent = sent_by(loads[0]);
  EXPECT_DOUBLE_EQ(sent.bytes, 2 * 0.75 * 4096 * 1024 * 4 + sent.messages * sizeof(FrameHeader));
  EXPECT_DOUBLE_EQ(sent.messages, loads[0][0].chunks * 6);
}

TEST(Simulation, CountsTheWorkOfTheReductionItself) {
  constexpr double kBytes = 4.0 * 4096 * 1024;
  for (const int ranks : {2, 4, 1024}) {
    const Stage stage = simulate(with("exact"), matrix(4096, 1024), ranks, 1).front().front();
    ASSERT_EQ(stage.work.size(), 1u);
    const CodecWork& work = stage.work.front();
    const double others = ranks - 1;
    EXPECT_NEAR(work.encoded / kBytes, (others + 2) / ranks, 0.01) << ranks;  // ours of our share, and its sum
    EXPECT_NEAR(work.encoded_in_sums / kBytes, 2.0 / ranks, 0.01) << ranks;
    EXPECT_NEAR(work.combined / kBytes, others / ranks, 0.01) << ranks;
    EXPECT_NEAR(work.decoded / kBytes, others / ranks, 0.01) << ranks;
    EXPECT_EQ(stage.windows, std::ceil(stage.chunks / 4)) << ranks;
  }
  std::vector<Parameter> gathered = matrix(4096, 1024);
  gathered[0].operation = Operation::all_gather;
  const CodecWork work = simulate(with("int8"), gathered, 4, 1).front().front().work.front();
  EXPECT_EQ(work.encoded, kBytes / 4);
  EXPECT_EQ(work.decoded, kBytes);  // our own shard too
  EXPECT_EQ(work.combined, 0);
}

TEST(Simulation, LevelsSendTheEncodedSizeOncePerNodeWhateverTheRanksInside) {
  const double encoded = static_cast<double>(parse_codec("int4").coder(ElementType::f32)->wire_bytes(4096 * 1024));
  for (const int per_node : {2, 4, 8}) {
    SessionOptions options = with("int4");
    options.hierarchy = Hierarchy::of_equal_nodes(4 * per_node, per_node);
    double across = 0;
    for (const BucketLoad& load : simulate(options, matrix(4096, 1024), 4 * per_node, per_node))
      across += per_node * sent_by(load, true).bytes;
    EXPECT_NEAR(across / (2 * 0.75 * encoded), 1, 0.02) << per_node;
  }
}

/// What a rank pays for an all-reduce of so many ranks: messages, bytes, rounds, arithmetic, memory.
std::vector<double> costs(const SessionOptions& options, const std::vector<Parameter>& parameters, int ranks) {
  double rounds = 0, work = 0;
  Sent sent;
  for (const BucketLoad& load : simulate(options, parameters, ranks, 1)) {
    sent += sent_by(load);
    for (const Stage& stage : load) {
      rounds += stage.rounds;
      for (const CodecWork& of : stage.work) work += of.encoded + of.combined + of.decoded;
    }
  }
  return {sent.messages, sent.bytes, rounds, work, simulate_frame_bytes(options, parameters, ranks)};
}

TEST(Simulation, NothingGrowsFasterThanRanks) {
  struct Case {
    const char* codec;
    Algorithm form;
    std::int64_t rows;
  };
  for (const Case& c : {Case{"exact", Algorithm::automatic, 1024},
                        {"int8", Algorithm::automatic, 1024},
                        {"int8", Algorithm::automatic, 4},
                        {"int8", Algorithm::one_shot, 64},
                        {"exact", Algorithm::ring, 1024},
                        {"int8", Algorithm::tree, 4},
                        {"topk:ratio=0.01", Algorithm::automatic, 1024},
                        {"powersgd:rank=4", Algorithm::automatic, 1024}}) {
    SessionOptions options = with(c.codec);
    options.plan.algorithm = c.form;
    // Another form, or other chunks, are up to four times as much; ranks times their logarithm would be seven to ten.
    const std::vector<double> of_two = costs(options, matrix(c.rows, 1024), 2);
    for (const int ranks : {3, 16, 128, 1024}) {
      const std::vector<double> now = costs(options, matrix(c.rows, 1024), ranks);
      for (std::size_t i = 0; i < now.size(); ++i)
        EXPECT_LE(now[i], 4.0 * (ranks - 1) * of_two[i])
            << c.codec << ' ' << to_string(c.form) << ", figure " << i << ", " << ranks << " ranks";
    }
  }
}

TEST(Forecast, RecommendsLevelsOverSharedLinksAndExactWhereTheStepHardlyWaits) {
  const std::vector<std::string> codecs = {"exact", "bf16", "int8", "int4"};
  const tool::Advice shared = tool::forecast(matrix(8192, 1024), codecs, {}, cluster(64, 8, 10), even_costs(), 0);
  EXPECT_TRUE(shared.compress);
  EXPECT_TRUE(shared.forecasts[shared.best].by_levels);
  EXPECT_EQ(shared.forecasts[shared.best].codec, "int4:block=64");
  EXPECT_TRUE(shared.forecasts[shared.exact].by_levels);
  // Exact and bf16 have a ring, through a node's link once up, in fp32, and once back.
  std::vector<double> rings;
  for (const tool::Forecast& f : shared.forecasts)
    if (f.ring) rings.push_back(f.node_bytes / (4.0 * 8192 * 1024));
  ASSERT_EQ(rings.size(), 2u);
  EXPECT_NEAR(rings[0], 2, 0.01);
  EXPECT_NEAR(rings[1], 1.5, 0.01);
  const tool::Advice idle = tool::forecast(matrix(64, 64), codecs, {}, cluster(8, 1, 100), even_costs(), 1.0);
  EXPECT_FALSE(idle.compress);
  EXPECT_EQ(idle.forecasts[idle.best].codec, "exact");
  EXPECT_THROW(tool::forecast(matrix(64, 64), codecs, {}, cluster(9, 2, 10), even_costs(), 0), Error);
}

}  // namespace
}  // namespace tightwire
