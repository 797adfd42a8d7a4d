// `tightwire bench`, `plan` and `info --topology`, as a user calls them.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "unit/support/tool.hpp"

namespace {

using tightwire::testing::tool;
using Outcome = tightwire::testing::ToolOutcome;

std::vector<nlohmann::json> json_lines(const Outcome& outcome) {
  std::vector<nlohmann::json> rows;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ToolBench, EveryCodecPassesTheCheckAndFiguresFollowTheirDefinitions) {
  std::string codecs = "topk:ratio=0.01 powersgd:rank=4 randomk:ratio=0.1 hadamard:32+int4:block=32 auto";
  const auto known = nlohmann::json::parse(tool("info --json").output);
  for (const auto& codec : known.at("codecs")) {
    const std::string spec = codec.at("spec");
    codecs += " " + spec.substr(0, spec.find(':'));
  }
  const Outcome outcome =
      tool("bench -n 3 --from 1K --to 64K --factor 8 --iterations 1 --warm-up 0 --json --check --codecs " + codecs);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const auto rows = json_lines(outcome);
  EXPECT_EQ(rows.size() % 3, 0u);
  EXPECT_GT(rows.size(), 60u);
  for (const auto& row : rows) {
    const double bytes = row.at("bytes"), seconds = row.at("seconds");
    EXPECT_NEAR(row.at("algbw_gb_per_s").get<double>(), 1e-9 * bytes / seconds, 1e-6 * bytes / seconds * 1e-9);
    EXPECT_NEAR(row.at("busbw_gb_per_s").get<double>() / row.at("algbw_gb_per_s").get<double>(), 4.0 / 3, 1e-9);
    EXPECT_NEAR(row.at("ratio").get<double>(), 4.0 / 3 * bytes / row.at("wire_bytes").get<double>(), 1e-6);
    if (row.at("codec") == "exact") {
      EXPECT_LT(row.at("error").get<double>(), 1e-6);
    }
    if (row.at("codec") == "int8") {
      EXPECT_GT(row.at("error").get<double>(), 1e-3);
    }
  }
}

TEST(ToolBench, OverlapHidesWhatItSaysAndFiguresFollowTheirDefinitions) {
  const std::string bench = "bench -n 2 --overlap 15 --buckets 4 --from 16M --to 16M --codecs int8 --iterations ";
  const auto rows = json_lines(tool(bench + "5 --json"));
  ASSERT_EQ(rows.size(), 2u);
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("buckets"), 4);
    const double compute = row.at("compute_seconds"), reduce = row.at("reduce_seconds");
    EXPECT_GE(compute, 0.06);
    EXPECT_GE(row.at("both_seconds").get<double>(), 0.06);
    EXPECT_NEAR(row.at("possible").get<double>(), 0.75 * std::min(1.0, compute / reduce), 1e-9);
    EXPECT_GT(row.at("hidden").get<double>(), 0.2) << row;  // 0 where buckets only go on once somebody waits
  }
  const auto once = json_lines(tool(bench + "1 --json --on-cpu")).at(0);
  const double both = once.at("both_seconds"), reduce = once.at("reduce_seconds");
  EXPECT_NEAR(once.at("hidden").get<double>(), (once.at("compute_seconds").get<double>() + reduce - both) / reduce,
              1e-9);
  EXPECT_TRUE(has(tool(bench + "1").output, "possible"));
}

/// Nodes by text, with the bytes of their plan.
TEST(ToolBench, GoesOverNodesThatTheCodecNames) {
  const std::string bench = "bench -n 4 --from 256K --to 256K --iterations 1 --warm-up 0 --json --check --codecs ";
  const Outcome outcome = tool(bench + "int4 'hier(across=int4, levels=node:2)' 'hier(inside=bf16, across=int4)'");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const auto rows = json_lines(outcome);
  ASSERT_EQ(rows.size(), 4u) << outcome.output;
  EXPECT_EQ(rows[2].at("codec"), "hier(across=int4, levels=node:2)");
  EXPECT_GT(rows[2].at("wire_bytes").get<double>(), 2.5 * rows[1].at("wire_bytes").get<double>()) << "exact inside";
  EXPECT_EQ(rows[3].at("wire_bytes"), rows[1].at("wire_bytes")) << "all ranks share the node, so that it goes flat";
  const Outcome wrong = tool(bench + "'hier(across=int9)'");
  EXPECT_NE(wrong.status, 0);
  EXPECT_TRUE(has(wrong.output, "int9")) << wrong.output;
}

TEST(ToolBench, CheckFindsWhatIsPlanted) {
  const std::string bench = "bench -n 2 --from 64K --to 64K --iterations 1 --codecs int8 --check ";
  EXPECT_EQ(tool(bench).status, 0);
  const std::vector<std::pair<std::string, std::string>> plants = {{"bits", "ranks hold different bits"},
                                                                   {"error", "above the bound"},
                                                                   {"nan", "above the bound"},
                                                                   {"bytes", "and the plan says"}};
  for (const auto& [plant, told] : plants) {
    const Outcome outcome = tool(bench + "--plant " + plant);
    EXPECT_EQ(outcome.status, 1) << plant;
    EXPECT_TRUE(has(outcome.output, "65536 bytes, int8: ")) << outcome.output;
    EXPECT_TRUE(has(outcome.output, told)) << outcome.output;
  }
}

TEST(ToolBench, RefusesWhatMakesNoSense) {
  for (const char* arguments :
       {"bench -n 2 --codecs int9", "bench -n 2 --from 1M --to 1K", "bench -n 2 --json --csv", "bench -n 0",
        "bench --from x", "bench -n 2 --overlap 1 --check", "bench -n 2 --overlap 0", "bench -n 2 --buckets 3"}) {
    const Outcome outcome = tool(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << ": " << outcome.output;
  }
  EXPECT_TRUE(has(tool("bench -n 2 --codecs int9").output, "int9"));
  const Outcome other = tool("bench -n 3 --from 1K --to 1K",
                             "TIGHTWIRE_RANK=0 TIGHTWIRE_WORLD_SIZE=2 "
                             "TIGHTWIRE_RENDEZVOUS=tcp://127.0.0.1:9 "
                             "TIGHTWIRE_JOB_KEY=k");
  EXPECT_EQ(other.status, 2);
  EXPECT_TRUE(has(other.output, "3 ranks in a job of 2")) << other.output;
}

TEST(ToolBench, RanksOfTheLauncherAreItsRanksAndOneRankAloneWorks) {
  const Outcome outcome = tool("run -n 2 --quiet -- '" TIGHTWIRE_TOOL "' bench --from 1K --to 1K --csv --iterations 1");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 5) << outcome.output;  // head, four codecs
  EXPECT_TRUE(has(outcome.output, "bytes,elements,codec,seconds"));
  EXPECT_EQ(tool("bench --from 1K --to 1K --iterations 1 --check").status, 0);
}

TEST(ToolBench, SaysWhereStandardOutputCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_EQ(tool("bench --from 1K --to 1K --iterations 1 --codecs exact >/dev/full").status, 1);
}

TEST(ToolBench, TellsWhereRanksShareACore) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::size_t core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  const std::string one_core = "taskset -c " + std::to_string(core);
  const auto rows = json_lines(tool("bench -n 3 --from 1K --to 1K --iterations 1 --codecs exact --json", one_core));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("ranks_per_core"), 3);
  const Outcome outcome = tool("bench -n 3 --from 1K --to 1K --iterations 1 --codecs exact", one_core);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "3 ranks share a core")) << outcome.output;
}

TEST(ToolPlan, PlansWithWhatACalibrationKnowsByDefault) {
  const std::string folder = std::filesystem::temp_directory_path() / (std::to_string(::getpid()) + "-plan");
  std::filesystem::create_directories(folder);
  const std::string file = folder + "/here.json", model = folder + "/model.txt";
  std::ofstream(model) << "w 1024x1024 fp16\nb 1024 bf16\n";
  // As --help and docs/planning.md have it, but for the iterations.
  const Outcome bench = tool("bench -n 2 --iterations 1 --calibrate " + file);
  ASSERT_EQ(bench.status, 0) << bench.output;
  const Outcome plan = tool("plan --bytes 100M --calibration " + file + " --across-gbit 25");
  EXPECT_EQ(plan.status, 0) << plan.output;
  EXPECT_TRUE(has(plan.output, "powersgd:rank=4")) << plan.output;
  EXPECT_FALSE(has(plan.output, "left out")) << plan.output;
  EXPECT_EQ(tool("plan " + model + " --calibration " + file + " --across-gbit 25 --ranks 8").status, 0);
  // Memory is no network: of that the calibration tells nothing.
  const Outcome across = tool("plan --bytes 100M --calibration " + file);
  EXPECT_EQ(across.status, 2);
  EXPECT_TRUE(has(across.output, "share memory") && has(across.output, "--across-gbit")) << across.output;
  EXPECT_EQ(tool("plan --bytes 1M --calibration " + file + " --ranks 2 --per-node 2").status, 0);

  EXPECT_EQ(tool("bench -n 2 --iterations 1 --codecs int8 randomk:ratio=0.1+int6 --calibrate " + file).status, 0);
  const Outcome less = tool("plan --bytes 1M --ranks 8 --calibration " + file + " --across-gbit 25");
  EXPECT_EQ(less.status, 0) << less.output;
  EXPECT_TRUE(has(less.output, "left out, since the calibration does not know their costs: int4 topk:ratio=0.01"))
      << less.output;
  const Outcome named = tool("plan --bytes 1M --codecs int4 --calibration " + file + " --across-gbit 25");
  EXPECT_EQ(named.status, 2);
  EXPECT_TRUE(has(named.output, "here.json\" has no cost of int4")) << named.output;
  std::filesystem::remove_all(folder);
}

/// Without what was said on standard error before.
nlohmann::json json_of(const Outcome& plan) {
  return nlohmann::json::parse(plan.output.substr(std::min(plan.output.find('['), plan.output.size())));
}

TEST(ToolPlan, TakesACalibrationAndPlansForAnyNumberOfRanks) {
  const std::string file =
      (std::filesystem::temp_directory_path() / (std::to_string(::getpid()) + "-calibration.json")).string();
  const Outcome bench = tool("bench -n 2 --iterations 1 --codecs exact int8 --calibrate " + file);
  EXPECT_EQ(bench.status, 0) << bench.output;
  const Outcome plan = tool("plan --bytes 100M --codecs exact int8 --json --calibration " + file +
                            " --ranks 2,8,1024,16384 --per-node 1,4,8 --across-gbit 1 --across-latency-us 50");
  std::filesystem::remove(file);
  ASSERT_EQ(plan.status, 0) << plan.output;
  const auto all = json_of(plan);
  ASSERT_EQ(all.size(), 10u);  // of 2 ranks there are no nodes of 4 or 8
  for (const auto& one : all) {
    if (one.at("ranks") == one.at("per_node")) continue;  // has no slow link
    EXPECT_TRUE(one.at("use").at("compress").get<bool>()) << one;
    EXPECT_EQ(one.at("use").at("codec"), "int8:block=256");
    const double ranks = one.at("ranks"), bytes = one.at("schemes")[0].at("rank_bytes");
    // At least what a sum over ranks takes.
    EXPECT_GE(bytes, 2 * (ranks - 1) / ranks * 100 * (1 << 20));
  }
}

TEST(ToolPlan, MemoryMessagesAndBytesAreThoseOfSessions) {
  const auto rows = json_lines(tool("bench -n 3 --from 1M --to 1M --iterations 1 --codecs int8 --json"));
  ASSERT_EQ(rows.size(), 2u);
  const auto schemes = json_of(tool("plan --bytes 1M --across-gbit 1 --ranks 3 --per-node 1 --memory --json --codecs "
                                    "exact int8"))
                           .at(0)
                           .at("schemes");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(schemes.at(i).at("frame_bytes").get<double>(), rows[i].at("frame_bytes").get<double>());
    EXPECT_EQ(schemes.at(i).at("messages").get<double>(), rows[i].at("messages").get<double>());
    EXPECT_NEAR(schemes.at(i).at("rank_bytes").get<double>(), rows[i].at("wire_bytes").get<double>(), 2000);
    EXPECT_GT(rows[i].at("frame_bytes").get<double>(), 1e5);
  }
}

TEST(ToolPlan, NamesWhatIsMissingOrWrong) {
  const std::vector<std::pair<std::string, std::string>> calls = {
      {"plan", "--bytes"},
      {"plan --bytes 1M", "--across-gbit"},
      {"plan /nowhere/model --across-gbit 1", "/nowhere/model"},
      {"plan --bytes 1M --calibration /nowhere/c", "/nowhere/c"},
      {"plan --bytes 1M --across-gbit 1 --codecs auto", "auto"},
      {"plan --bytes 1M --across-gbit 1 --codecs int9", "int9"},
      {"plan --bytes 1M --across-gbit -1", "--across-gbit"},
      {"plan --bytes 1M --across-gbit 1 --overlap 2", "--overlap"},
      {"plan --bytes 1M --across-gbit 1 --codecs exact --ranks 10 --per-node 4", "nothing to plan"},
      {"plan --bytes 1M --across-gbit 1 --ranks 20000", "--ranks"},
      {"plan /nowhere/model --bytes 1M --across-gbit 1", "excludes"}};
  for (const auto& [arguments, told] : calls) {
    const Outcome outcome = tool(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << ": " << outcome.output;
    EXPECT_TRUE(has(outcome.output, told)) << arguments << ": " << outcome.output;
  }
}

TEST(ToolPlan, TellsWhatItLeavesOut) {
  const std::string plan = "plan --bytes 1M --across-gbit 1 --codecs exact --ranks ";
  const Outcome some = tool(plan + "8,10,2 --per-node 1,4");
  EXPECT_EQ(some.status, 0) << some.output;
  EXPECT_TRUE(
      has(some.output, "left out, since nodes would not be full: 10 ranks of 4 per node, 2 ranks of 4 per node"))
      << some.output;
  EXPECT_FALSE(has(tool(plan + "8 --per-node 1,4").output, "left out"));
  EXPECT_EQ(json_of(tool(plan + "8,10 --per-node 4 --json")).size(), 1u);
  EXPECT_TRUE(has(tool("plan --help").output, "Between nodes: how much of codec and transfer hides"));
}

TEST(ToolTopology, TellsWhatThisMachineHasAndWhatItLacks) {
  const Outcome outcome = tool("info --topology --json");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto here = nlohmann::json::parse(outcome.output);
  EXPECT_TRUE(here.at("processors").contains("missing") || here.at("processors").at("threads") > 0);
  bool loopback = false;
  for (const auto& device : here.at("network")) loopback = loopback || device.at("name") == "lo";
  EXPECT_TRUE(loopback);
  EXPECT_TRUE(!here.at("gpus").empty() || has(here.at("gpus_missing"), "NV"));
  EXPECT_TRUE(has(tool("info --topology").output, "one rank"));
}

TEST(ToolTopology, ShowsLinksOfGpusAsTheDriverHasThem) {
  const auto here =
      nlohmann::json::parse(tool("info --topology --json", "LD_LIBRARY_PATH='" TIGHTWIRE_FAKE_NVML "'").output);
  ASSERT_EQ(here.at("gpus").size(), 3u);
  EXPECT_EQ(here.at("gpus")[0].at("name"), "Fake 0");
  EXPECT_EQ(here.at("gpus")[0].at("to"), (nlohmann::json{"X", "NV4", "SYS"}));
  EXPECT_EQ(here.at("gpus")[1].at("to"), (nlohmann::json{"NV4", "X", "SYS"}));
  EXPECT_EQ(here.at("gpus")[2].at("to"), (nlohmann::json{"SYS", "SYS", "X"}));
}

TEST(ToolTopology, InAJobTellsOnceWhoSharesANode) {
  const Outcome outcome = tool("run -n 3 --quiet -- '" TIGHTWIRE_TOOL "' info --topology");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "job         3 ranks")) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "node 0    ranks 0 1 2")) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "hierarchy   none: all ranks share a node")) << outcome.output;
  ASSERT_TRUE(has(outcome.output, " packages, ")) << outcome.output;
  EXPECT_EQ(outcome.output.find(" packages, "), outcome.output.rfind(" packages, ")) << outcome.output;
}

/// A rank in a user namespace of its own cannot look into the others' memory.
TEST(ToolTopology, InAJobOfSeveralNodesSaysWhichHierarchyFollows) {
  if (std::system("unshare --user --map-root-user true >/dev/null 2>&1") != 0) GTEST_SKIP() << "needs user namespaces";
  const Outcome outcome =
      tool("run -n 3 --quiet -- sh -c 'test $TIGHTWIRE_RANK = 2 && exec unshare --user --map-root-user " TIGHTWIRE_TOOL
           " info --topology; exec " TIGHTWIRE_TOOL " info --topology'",
           "UCX_TLS=tcp,self");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "node 0    ranks 0 1\n  node 1    ranks 2\n")) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "hierarchy   2 nodes of 2+1 ranks: levels=auto, or levels=node:2+1"))
      << outcome.output;
}

}  // namespace
