// The command line tool, as a user calls it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include <tightwire/host/level.hpp>
#include <tightwire/tightwire.hpp>
#include <tightwire/version.hpp>

#include "support/tool.hpp"

namespace tightwire {
namespace {

using testing::tool;
using Outcome = testing::ToolOutcome;

nlohmann::json info() { return nlohmann::json::parse(tool("info --json").output); }

TEST(Tool, TellsItsVersion) {
  const Outcome outcome = tool("--version");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, std::string("tightwire ") + kVersion + "\n");
}

TEST(Tool, HelpNamesEverySubcommandAndNoSubcommandIsWrongUsage) {
  const Outcome help = tool("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.output.find("run"), std::string::npos);
  EXPECT_NE(help.output.find("info"), std::string::npos);
  EXPECT_NE(help.output.find("codecs"), std::string::npos);
  EXPECT_NE(help.output.find("converge"), std::string::npos);
  const Outcome nothing = tool("");
  EXPECT_EQ(nothing.status, 2);
  EXPECT_EQ(nothing.output, help.output);
}

TEST(Tool, NamesTheArgumentItDoesNotKnow) {
  for (const char* arguments : {"inform", "info --jason", "run -n 2 --lable true"}) {
    const Outcome outcome = tool(arguments);
    const std::string unknown = std::string(arguments).find("lable") != std::string::npos
                                    ? "--lable"
                                    : std::string(arguments).substr(std::string(arguments).rfind(' ') + 1);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.output.find(unknown), std::string::npos) << arguments << ": " << outcome.output;
  }
}

TEST(ToolInfo, ListsEveryBuiltInCodecWithTheBitsItTakes) {
  std::string names = "exact";
  const auto all = info();
  for (const auto& codec : all.at("codecs")) {
    const std::string spec = codec.at("spec");
    if (spec == "exact") continue;
    names += ", " + spec.substr(0, spec.find(':'));
    constexpr std::size_t kBlocks = 100'000;
    const auto coder = parse_codec(spec).coder(ElementType::f32);
    const std::size_t count = coder->block() * kBlocks;
    EXPECT_NEAR(codec.at("bits_per_element"),
                8 * static_cast<double>(coder->wire_bytes(count)) / static_cast<double>(count), 0.006)
        << spec;
  }
  EXPECT_EQ(names + ", topk, randomk, powersgd, auto", codec_names());
}

TEST(ToolInfo, TellsTheCpuLevelInForce) {
  EXPECT_EQ(info().at("cpu_level").at("in_force"), host::to_string(host::level()));
  const auto lower = nlohmann::json::parse(tool("info --json", "TIGHTWIRE_CPU_LEVEL=baseline").output);
  EXPECT_EQ(lower.at("cpu_level").at("in_force"), "baseline");
  const std::string nonsense = tool("info", "TIGHTWIRE_CPU_LEVEL=avx9").output;
  EXPECT_NE(nonsense.find("TIGHTWIRE_CPU_LEVEL=avx9"), std::string::npos) << nonsense;
}

TEST(ToolInfo, GivesAReasonForEveryComponentThatIsMissing) {
  const auto components = info().at("components");
  EXPECT_TRUE(components.at("core").at("built"));
  for (const char* name : {"ucx", "cuda", "nccl", "mpi"}) {
    const auto& component = components.at(name);
    EXPECT_FALSE(component.at("note").get<std::string>().empty()) << name;
    EXPECT_EQ(component.at("built").get<bool>(), component.at("note") == "built") << name;
  }
}

TEST(ToolInfo, TellsWhatUcxWouldUseWhereItIsBuilt) {
  const auto all = info();
  if (!all.at("components").at("ucx").at("built").get<bool>()) GTEST_SKIP() << "the ucx component is not built";
  const std::string transports = all.at("transports").at("ucx").at("transports");
  EXPECT_NE(transports.find("tcp"), std::string::npos) << transports;
}

/// A machine without a driver is one without devices, and says so.
TEST(ToolInfo, TellsWhatDevicesThereAreWhereCudaIsBuilt) {
  const auto all = info();
  if (!all.at("components").at("cuda").at("built").get<bool>()) GTEST_SKIP() << "the cuda component is not built";
  const auto& cuda = all.at("devices").at("cuda");
  const std::string note = cuda.at("note");
  EXPECT_NE(note.find("device"), std::string::npos) << note;
  EXPECT_EQ(cuda.at("count").get<int>() == 0, note.rfind("no ", 0) == 0) << note;
  const std::string staged = cuda.at("staged");
  EXPECT_NE(staged.find("through pinned host memory"), std::string::npos) << staged;
  if (!all.at("components").at("ucx").at("built").get<bool>()) return;
  const bool knows = all.at("transports").at("ucx").at("cuda_memory");
  EXPECT_NE(staged.find(knows ? "knows CUDA memory, unused" : "without CUDA"), std::string::npos) << staged;
}

/// Its version, or why it cannot be loaded.
TEST(ToolInfo, TellsWhichNcclThereIsWhereItIsBuilt) {
  const auto all = info();
  if (!all.at("components").at("nccl").at("built").get<bool>()) GTEST_SKIP() << "the nccl component is not built";
  const auto& nccl = all.at("transports").at("nccl");
  const std::string version = nccl.value("version", ""), error = nccl.value("error", "");
  EXPECT_TRUE(version.rfind("2.", 0) == 0 || error.find("NCCL") != std::string::npos) << nccl.dump();
}

TEST(ToolCodecs, MeasuresWhatItIsAskedFor) {
  const Outcome outcome = tool("codecs --json int8 hadamard:32+int4:block=32 dense");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto rows = nlohmann::json::parse(outcome.output);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("spec"), "int8:block=256");
  EXPECT_NEAR(rows[0].at("bits_per_element"), 8.0625, 0.001);
  EXPECT_NEAR(rows[0].at("nmse").at("gaussian"), 4.9e-5, 0.1e-5);
  EXPECT_EQ(rows[1].at("spec"), "hadamard:32+int4:block=32");
  EXPECT_NEAR(rows[1].at("nmse").at("student_t3"), 6.2e-3, 0.1e-3);
  EXPECT_EQ(rows[2].at("nmse").at("outliers"), 0.0);
  for (const auto& row : rows)
    for (const char* what : {"encode_gb_per_s", "decode_gb_per_s"})
      for (const char* where : {"memory", "cache"}) EXPECT_GT(row.at(what).at(where), 0.0) << row;
}

TEST(ToolCodecs, PrintsATableAndNamesWhatItDoesNotKnow) {
  const Outcome table = tool("codecs int4");
  EXPECT_EQ(table.status, 0);
  EXPECT_NE(table.output.find("int4:block=64"), std::string::npos) << table.output;
  const Outcome unknown = tool("codecs int8 int44");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_NE(unknown.output.find("int44"), std::string::npos) << unknown.output;
  EXPECT_EQ(unknown.output.find("int8:block"), std::string::npos) << "measured before it looked";
}

TEST(ToolConverge, HandsItsArgumentsToThePackageAndNamesWhatIsMissing) {
  const Outcome help = tool("converge --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.output.find("--tier"), std::string::npos) << help.output;
  const Outcome missing = tool("converge --plan", "TIGHTWIRE_CONVERGENCE_TRAINER=/nothing/there");
  EXPECT_EQ(missing.status, 64);
  EXPECT_NE(missing.output.find("/nothing/there is not there"), std::string::npos) << missing.output;
}

TEST(ToolRun, PassesTheProgramsArgumentsOnUntouched) {
  const std::string echo = R"(sh -c 'echo "$RANK of $WORLD_SIZE: $*"' name -n 7 --label -- info)";
  for (const char* dashes : {"-- ", ""}) {
    const Outcome outcome = tool(std::string("run -n 1 ") + dashes + echo);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.output, "0 of 1: -n 7 --label -- info\n");
  }
}

TEST(ToolRun, LabelsEveryLineWithItsRank) {
  const Outcome outcome = tool("run -n 2 --label -- sh -c 'echo a; echo b'");
  EXPECT_EQ(outcome.status, 0);
  for (const char* line : {"[0] a\n", "[0] b\n", "[1] a\n", "[1] b\n"})
    EXPECT_NE(outcome.output.find(line), std::string::npos) << outcome.output;
}

TEST(ToolRun, PutsTheWrapperBeforeEveryRankWithItsNumber) {
  const Outcome outcome = tool("run -n 2 --wrapper 'env \"WHERE=node {rank}\"' -- sh -c 'echo \"$RANK on $WHERE\"'");
  EXPECT_EQ(outcome.status, 0);
  for (const char* line : {"0 on node 0\n", "1 on node 1\n"})
    EXPECT_NE(outcome.output.find(line), std::string::npos) << outcome.output;
}

TEST(ToolRun, ReturnsTheStatusOfTheRankThatFailedAndSaysWhich) {
  const std::string fail = "-- sh -c '[ $RANK = 0 ] || exit 7'";
  const Outcome outcome = tool("run -n 2 " + fail);
  EXPECT_EQ(outcome.status, 7);
  EXPECT_NE(outcome.output.find("rank 1"), std::string::npos) << outcome.output;
  const Outcome quiet = tool("run -n 2 --quiet " + fail);
  EXPECT_EQ(quiet.status, 7);
  EXPECT_EQ(quiet.output, "");
}

TEST(ToolRun, RefusesWhatCannotWork) {
  EXPECT_EQ(tool("run -n 2").status, 2) << "no program";
  EXPECT_EQ(tool("run -- true").status, 2) << "no number of ranks";
  EXPECT_EQ(tool("run -n 0 -- true").status, 2);
  EXPECT_EQ(tool("run -n 2 --grace -1 -- true").status, 2);
  const Outcome missing = tool("run -n 1 -- /no/such/program");
  EXPECT_EQ(missing.status, 127);
  EXPECT_NE(missing.output.find("/no/such/program"), std::string::npos) << missing.output;
}

}  // namespace
}  // namespace tightwire
