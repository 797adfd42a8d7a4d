// All-reduce over nodes between processes: the bytes of the in-process transport; who is lost, or sees other nodes, is
// named to all.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "ucx_support.hpp"
#include "unit/support/steps.hpp"

namespace tightwire::testing::ucx_hierarchy_test {
namespace {

SessionOptions over(const std::vector<int>& node_of_rank, const char* inside = "exact") {
  SessionOptions options;
  options.plan.share_elements = 700;
  options.plan.one_shot_bytes = 0;
  options.hierarchy = {.node_of_rank = node_of_rank, .inside = parse_codec(inside)};
  return options;
}

class HierarchyOverUcx : public ::testing::TestWithParam<Network> {
 protected:
  static std::shared_ptr<Transport> open(const Rendezvous& rendezvous, const std::vector<int>& nodes) {
    return GetParam().open(rendezvous, nodes);
  }
};

INSTANTIATE_TEST_SUITE_P(Networks, HierarchyOverUcx, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(HierarchyOverUcx, SameBitsAsInProcess) {
  for (const auto& [layout, inside] :
       {std::pair<std::vector<int>, const char*>{{0, 0, 1, 1}, "exact"}, {{0, 0, 0, 1}, "int8"}}) {
    Steps steps{
        .model = {{"a", {301, 200}, ElementType::f32, parse_codec("int4")}, {"b", {30'000}, ElementType::f32, Codec{}}},
        .options = over(layout, inside)};
    const int ranks = static_cast<int>(layout.size());
    const auto in_process = steps.run(ranks);
    ASSERT_TRUE(all_equal(in_process));
    // A transport that has nodes sees them itself.
    if (GetParam().is_mixed) steps.options.hierarchy = Hierarchy::of_transport(parse_codec(inside));
    const auto results = run_ranks(ranks, [&](const Rendezvous& rendezvous) {
      const auto session = sealed_session(open(rendezvous, layout), steps.model, steps.options);
      require(session->description().find(": over 2 nodes of ") != std::string::npos, "it goes over nodes");
      Gradients gradients(steps.model);
      std::vector<std::byte> bytes;
      for (int step = 0; step < steps.steps; ++step) {
        gradients.fill_wide(Steps::seed(rendezvous.rank, step), steps.exponents);
        session->all_reduce(gradients.pointers());
        require(session->commit(), "the step counts");
        const std::vector<std::byte> now = gradients.bytes();
        bytes.insert(bytes.end(), now.begin(), now.end());
      }
      require(bytes == in_process[0], "the bytes are those of the in-process transport");
      return 0;
    });
    EXPECT_EQ(complaints(results), "");
  }
}

/// Both ranks of a node at once: the others hear soon, of either.
TEST_P(HierarchyOverUcx, ANodeThatDisappearsIsNamedToTheOthers) {
  const Model model = {{"large", {1'000'003}, ElementType::f32, Int8{}}};
  const auto results = run_ranks(4, [&](const Rendezvous& rendezvous) {
    const std::vector<int> nodes = {0, 0, 1, 1};
    SessionOptions options = over(nodes);
    options.plan.share_elements = 0;
    const auto session = sealed_session(open(rendezvous, nodes), model, options);
    Gradients gradients(model);
    TimePoint began;
    const Error error = error_of([&] {
      for (int step = 0;; ++step) {
        if (step == 3 && rendezvous.rank >= 2) raise(SIGKILL);
        began = Clock::now();
        session->all_reduce(gradients.pointers());
        session->commit();
      }
    });
    require(error.code() == Errc::peer_lost, error.what());
    const std::string text = error.what();
    require(text.find("rank 2 lost") != std::string::npos || text.find("rank 3 lost") != std::string::npos, text);
    require(Clock::now() - began < std::chrono::seconds(5), "soon, not at the deadline of a minute");
    return 0;
  });
  for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(results[rank].exit_status, 0) << results[rank].text;
  for (const std::size_t rank : {2u, 3u}) EXPECT_EQ(results[rank].signal, SIGKILL);
}

TEST_P(HierarchyOverUcx, RanksThatSeeOtherNodesAllHearBoth) {
  const auto results = run_ranks(4, [&](const Rendezvous& rendezvous) {
    const bool odd = rendezvous.rank == 3;
    const auto transport = open(rendezvous, {0, 1, 0, 1});
    const Error error = error_of([&] {
      sealed_session(transport, mixed_model(), over(odd ? std::vector{0, 1, 0, 1} : std::vector{0, 0, 1, 1}));
    });
    require(error.code() == Errc::mismatch, error.what());
    for (const char* part : {"hierarchy of nodes 0 1 | 2 3", "hierarchy of nodes 0 2 | 1 3", "rank 3 has"})
      require(std::string(error.what()).find(part) != std::string::npos, std::string(part) + " in: " + error.what());
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
}

}  // namespace
}  // namespace tightwire::testing::ucx_hierarchy_test
