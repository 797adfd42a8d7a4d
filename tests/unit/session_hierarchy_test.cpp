// All-reduce over nodes: the same bits everywhere, the order of sums as documented, nothing lost at any stage, and as
// many bytes across nodes as one rank per node would send.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_session.hpp>
#include <tightwire/hierarchy_text.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_hierarchy {
namespace {

Hierarchy nodes(std::vector<int> node_of_rank, const char* inside = "exact") {
  return {.node_of_rank = std::move(node_of_rank), .inside = parse_codec(inside)};
}
Model fp32_model(const char* codec) {
  return {{"a", {37, 61}, ElementType::f32, parse_codec(codec)},
          {"exact", {65}, ElementType::f32, Codec{}},
          {"b", {2500}, ElementType::f32, parse_codec(codec)},
          {"empty", {0, 3}, ElementType::f32, parse_codec(codec)},
          {"one", {1}, ElementType::f32, parse_codec(codec)}};
}
SessionOptions over(Hierarchy hierarchy) {
  SessionOptions options = in_pieces(Algorithm::automatic);
  options.plan.one_shot_bytes = 0;  // or all of this would go flat
  options.hierarchy = std::move(hierarchy);
  return options;
}

TEST(Hierarchy, SameBitsOnAllRanks) {
  const std::vector<std::vector<int>> layouts = {
      {0, 0, 1, 1}, {0, 1, 0, 1},    {5, 5, 5, 2, 2, 2}, {0, 0, 1, 1, 2, 2},
      {0, 0, 0, 1}, {0, 0, 0, 1, 1}, {2, 0, 1, 0, 1, 0}, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}};
  for (const auto& layout : layouts)
    for (const char* across : {"exact", "int8", "hadamard:64+int4:block=64", "int4:round=stochastic"})
      for (const char* inside : {"exact", "int8", "bf16"}) {
        if ((layout.size() > 4 || std::string(inside) == "bf16") && std::string(across) != "int8") continue;
        SCOPED_TRACE(std::to_string(layout.size()) + " ranks, " + across + ", inside " + inside);
        Steps steps{.model = fp32_model(across), .options = over(nodes(layout, inside)), .exponents = 3};
        const auto results = steps.run(static_cast<int>(layout.size()));
        EXPECT_TRUE(all_equal(results));
        steps.reduce = in_random_order(3);
        EXPECT_EQ(steps.run(static_cast<int>(layout.size())), results) << "the order of starts shows";
        if (std::string(across) != "int8" || std::string(inside) != "int8") continue;
        steps.options.residual = ElementType::bf16;  // nodes round their copies of a residual alike
        const auto in_bf16 = steps.run(static_cast<int>(layout.size()));
        EXPECT_TRUE(all_equal(in_bf16)) << "residuals in bf16";
        EXPECT_NE(in_bf16, results);
      }
}

/// Exact all the way: sums over the ranks of a node, in order, then over the nodes.
void expect_sums(const std::vector<int>& node_of_rank, const std::vector<std::vector<std::size_t>>& order) {
  const Model model = fp32_model("exact");
  const auto ranks = static_cast<int>(node_of_rank.size());
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, over(nodes(node_of_rank)));
    std::deque<Gradients> of_ranks;
    for (std::uint64_t rank = 0; rank < node_of_rank.size(); ++rank) of_ranks.emplace_back(model).fill_wide(rank + 1);
    Gradients own(model);
    own.fill_wide(static_cast<std::uint64_t>(transport->rank()) + 1);
    session->all_reduce(own.pointers());
    for (std::size_t p = 0; p < model.size(); ++p)
      for (std::size_t i = 0; i < model[p].count(); ++i) {
        float total = 0;
        for (const auto& node : order) {
          float sum = of_ranks[node[0]].get(p, i);
          for (std::size_t place = 1; place < node.size(); ++place) sum += of_ranks[node[place]].get(p, i);
          total = &node == &order[0] ? sum : total + sum;
        }
        ASSERT_EQ(own.get(p, i), total / static_cast<float>(ranks)) << p << " " << i;
      }
  });
}

TEST(Hierarchy, SumsInTheOrderOfNodes) {
  expect_sums({7, 8, 8, 7}, {{0, 3}, {1, 2}});
  expect_sums({0, 0, 0, 1}, {{0, 1, 2}, {3}});
  expect_sums({1, 0, 1, 0, 1}, {{0, 2, 4}, {1, 3}});
}

/// Whatever way the bytes take inside: as if each node were a rank that has the sum of its ranks.
TEST(Hierarchy, ResultsAreThoseOfNodesThatEncodeTheirSums) {
  for (const char* codec : {"int8", "hadamard:64+int4:block=64", "sign", "bf16"})
    for (const std::vector<int>& layout : {std::vector<int>{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 1, 1, 0}}) {
      const Model model = fp32_model(codec);
      SessionOptions options = over({});
      options.average = false;
      options.plan.algorithm = Algorithm::two_shot;
      const auto filled = [&](int rank) {
        Gradients gradients(model);
        gradients.fill_bell(static_cast<std::uint64_t>(rank) + 1);
        return gradients;
      };
      std::vector<std::byte> expected;
      run_all(2, [&](const std::shared_ptr<Transport>& transport) {
        Gradients sum(model);
        bool first = true;
        for (std::size_t rank = 0; rank < layout.size(); ++rank) {
          if (layout[rank] != transport->rank()) continue;
          const Gradients one = filled(static_cast<int>(rank));
          for (std::size_t p = 0; p < model.size(); ++p)
            for (std::size_t i = 0; i < model[p].count(); ++i)
              sum.set(p, i, first ? one.get(p, i) : sum.get(p, i) + one.get(p, i));
          first = false;
        }
        sealed_session(transport, model, options)->all_reduce(sum.pointers());
        if (transport->rank() == 0) expected = sum.bytes();
      });
      run_all(static_cast<int>(layout.size()), [&](const std::shared_ptr<Transport>& transport) {
        SessionOptions with = options;
        with.hierarchy = nodes(layout);
        Gradients own = filled(transport->rank());
        sealed_session(transport, model, with)->all_reduce(own.pointers());
        EXPECT_TRUE(own.bytes() == expected) << codec << ", " << layout.size() << " ranks, rank " << transport->rank();
      });
    }
}

/// Nodes cut a chunk evenly, each into as many shares as it has ranks; parts are what lies between all these cuts.
TEST(Hierarchy, PartsLieBetweenTheCutsOfAllNodes) {
  const std::vector<Part> parts = parts_of(nodes_of(nodes({0, 0, 0, 1, 1, 2}), 6));
  const std::vector<std::vector<std::size_t>> places = {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {2, 1, 0}};
  const std::vector<std::pair<std::size_t, std::size_t>> ends = {{1, 3}, {1, 2}, {2, 3}, {1, 1}};
  ASSERT_EQ(parts.size(), places.size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    EXPECT_EQ(parts[p].places, places[p]) << p;
    EXPECT_EQ(std::pair(parts[p].numerator, parts[p].denominator), ends[p]);
  }
  EXPECT_EQ(parts_of(nodes_of(nodes({0, 1, 0, 1, 0, 1}), 6)).size(), 3u);
}

/// How far the sum of all results is from the sum of all means, at most, after so many steps of the same gradients.
double drift(const char* across, const char* inside, bool feedback, int steps,
             const std::vector<int>& layout = {0, 0, 1, 1}, ElementType residual = ElementType::f32) {
  double largest = 0;
  const Model model = fp32_model(across);
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = over(nodes(layout, inside));
    options.error_feedback = feedback;
    options.residual = residual;
    const auto session = sealed_session(transport, model, options);
    Gradients mine(model);
    std::vector<std::vector<double>> total, mean;
    for (const Tensor& tensor : model) total.emplace_back(tensor.count());
    mean = total;
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      mine.fill_bell(rank + 1);
      for (std::size_t p = 0; p < model.size(); ++p)
        for (std::size_t i = 0; i < mean[p].size(); ++i) mean[p][i] += static_cast<double>(mine.get(p, i)) / 4;
    }
    for (int step = 0; step < steps; ++step) {
      mine.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
      session->all_reduce(mine.pointers());
      session->commit();
      for (std::size_t p = 0; p < model.size(); ++p)
        for (std::size_t i = 0; i < mean[p].size(); ++i) total[p][i] += static_cast<double>(mine.get(p, i));
    }
    if (transport->rank() != 3) return;
    for (std::size_t p = 0; p < model.size(); ++p)
      for (std::size_t i = 0; i < mean[p].size(); ++i)
        largest = std::max(largest, std::abs(total[p][i] - steps * mean[p][i]));
  });
  return largest;
}

TEST(Hierarchy, NothingIsLostAtAnyStage) {
  // A residual is at most half a step of its stage; there are up to four of them, and after a hundred steps no more.
  for (const auto& [across, inside] : {std::pair{"int8", "exact"},
                                       {"int4", "exact"},
                                       {"exact", "int8"},
                                       {"int4", "int8"},
                                       {"hadamard:64+int4", "exact"}}) {
    SCOPED_TRACE(std::string(across) + " across, " + inside + " inside");
    const double once = drift(across, inside, true, 3), often = drift(across, inside, true, 100);
    EXPECT_GT(once, 1e-4) << "nothing was lost that could be kept";
    EXPECT_LT(often, 2.5 * once);
    EXPECT_GT(drift(across, inside, false, 100), 5 * often) << "without feedback it would not drift either";
  }
  const double once = drift("int4", "int8", true, 3, {0, 0, 0, 1});
  EXPECT_GT(once, 1e-4);
  EXPECT_LT(drift("int4", "int8", true, 100, {0, 0, 0, 1}), 2.5 * once);
  // In bf16 what rounding at random adds up to in a hundred steps comes on top.
  EXPECT_LT(drift("int4", "int8", true, 100, {0, 0, 0, 1}, ElementType::bf16), 3.5 * once);
}

/// Calls f(rank, statistics) on every rank, after a step of an int8 matrix in one chunk.
template <class F>
void after_a_step(const Hierarchy& hierarchy, std::int64_t rows, const F& f) {
  const Model model = {{"w", {rows, 64}, ElementType::f32, Int8{}}};
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = over(hierarchy);
    options.plan.share_elements = 1 << 16;
    options.plan.algorithm = Algorithm::two_shot;
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    reduce(*session, gradients, 1);
    f(transport->rank(), session->step_statistics());
  });
}

TEST(Hierarchy, BytesAcrossAreThoseOfOneRankPerNode) {
  after_a_step(nodes({0, 0, 1, 1}), 64, [](int, const StepStatistics& step) {
    const std::size_t header = sizeof(FrameHeader);
    // Back inside goes what came from across, as it is encoded there.
    const std::size_t inside = (header + 2048 * 4 + header) + (header + 2 * HostCoder<Int8>().wire_bytes(1024));
    const std::size_t across = 2 * (header + HostCoder<Int8>().wire_bytes(1024));
    EXPECT_EQ(step.sent_bytes, inside + across);
    EXPECT_EQ(step.received_bytes, inside + across);
    EXPECT_EQ(step.gradient_bytes, 4096u * 4);
    EXPECT_EQ(step.calls, 1u);
    // Both ranks of a node: 2 (N - 1) / N of the encoded size.
    EXPECT_NEAR(static_cast<double>(2 * across), static_cast<double>(HostCoder<Int8>().wire_bytes(4096)),
                4 * header + 64);
  });
}

/// Three ranks here and one there: the link of either node carries what that of any node does.
TEST(Hierarchy, BytesAcrossAreTheSameForUnequalNodes) {
  after_a_step(nodes({0, 0, 0, 1}), 96, [](int rank, const StepStatistics& step) {
    const std::size_t header = sizeof(FrameHeader);
    const std::size_t inside = 2 * ((header + 2048 * 4) + header + (header + 2 * HostCoder<Int8>().wire_bytes(1024)));
    const std::size_t part = 2 * (header + HostCoder<Int8>().wire_bytes(1024));
    EXPECT_EQ(step.sent_bytes, rank == 3 ? 3 * part : inside + part);
    EXPECT_EQ(step.received_bytes, step.sent_bytes);
  });
}

TEST(Hierarchy, ARolledBackStepNeverHappened) {
  const Model model = fp32_model("int4");
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, over(nodes({0, 0, 1, 1}, "int8")));
    const auto straight = sealed_session(transport, model, over(nodes({0, 0, 1, 1}, "int8")));
    Gradients gradients(model), others(model);
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step == 3) {
        reduce(*session, gradients, 99);
        session->rollback();
      }
      reduce(*session, gradients, step);
      session->commit();
      reduce(*straight, others, step);
      straight->commit();
      EXPECT_EQ(gradients.bytes(), others.bytes()) << step;
    }
  });
}

TEST(Hierarchy, NotFiniteIsKnownToAllRanks) {
  const Model model = fp32_model("int8");
  for (const char* const inside : {"exact", "int8", "bf16"}) {
    SessionOptions options = over(nodes({0, 0, 1, 1}, inside));
    options.nonfinite = NonFinitePolicy::skip_step;
    for (int who = 0; who < 4; ++who)
      run_all(4, [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, model, options);
        Gradients gradients(model);
        gradients.fill_bell(1);
        if (transport->rank() == who) gradients.set(2, 1234, std::numeric_limits<float>::quiet_NaN());
        session->all_reduce(gradients.pointers());
        EXPECT_FALSE(session->commit()) << inside;
        for (const float x : residuals(*session)) ASSERT_EQ(x, 0.0f) << inside;
        reduce(*session, gradients, 2);
        EXPECT_TRUE(session->commit()) << inside;
      });
  }
}

/// Ranks are called by their numbers in the job, in errors of frames as in those of the transport.
TEST(Hierarchy, ErrorsNameRanksOfTheJob) {
  const Model model = fp32_model("int8");
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result})
    for (const int to : {1, 2}) {  // across nodes, inside one; in both groups rank 3 is number 1
      const auto script = [&](int rank) -> FaultyTransport::Script {
        if (rank != 3) return {};
        return [kind, to](const Message& message) {
          Fault fault;
          if (message.peer == to && static_cast<FrameKind>(message.tag >> 38 & 3) == kind)
            fault.change = [](std::span<std::byte> frame) { frame.back() ^= std::byte{1}; };
          return fault;
        };
      };
      const auto outcomes = run_each(faulty(4, script), [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, model, over(nodes({0, 0, 1, 1})));
        Gradients gradients(model);
        reduce(*session, gradients, 1);
      });
      EXPECT_EQ(outcomes[static_cast<std::size_t>(to)].error, Errc::corrupt);
      EXPECT_EQ(outcomes[static_cast<std::size_t>(to)].message, "frame from rank 3: checksum does not match its bytes");
      for (const Outcome& outcome : outcomes)  // others may be done, or hear of it
        EXPECT_EQ(outcome.message.find("number"), std::string::npos) << outcome.message;
    }
  const auto lost = run_each(local::make(4), [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, over(nodes({0, 0, 1, 1})));
    Gradients gradients(model);
    if (transport->rank() == 3) return transport->abort("tired");
    reduce(*session, gradients, 1);
  });
  for (const std::size_t rank : {0u, 1u, 2u}) {
    EXPECT_EQ(lost[rank].error, Errc::peer_lost);
    EXPECT_EQ(lost[rank].message, "rank 3 lost: tired");
  }
}

TEST(Hierarchy, WhatCannotGoThroughNodesGoesFlatAndSaysSo) {
  Model model = fp32_model("int8");
  model.push_back({"half", {900}, ElementType::bf16, Int8{}});
  model.push_back({"chosen", {900}, ElementType::f32, TopK{.ratio = 0.1}});
  model.push_back({"drawn", {900}, ElementType::f32, parse_codec("randomk:ratio=0.1")});
  model.push_back({"factors", {30, 30}, ElementType::f32, parse_codec("powersgd:rank=2")});
  SessionOptions options = over(nodes({0, 0, 1, 1}));
  options.bucket_bytes = 1;  // a bucket for each
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    const std::string plan = session->description();
    EXPECT_TRUE(contains(plan, "hierarchy of nodes 0 1 | 2 3, inside exact"));
    EXPECT_TRUE(contains(plan, "bucket 0 of parameters 0: over 2 nodes of 2, "));
    EXPECT_TRUE(contains(plan, "bucket 4 of parameters 5: two_shot"));
    EXPECT_TRUE(contains(plan, "bucket 5 of parameters 6: topk"));
    EXPECT_TRUE(contains(plan, "bucket 6 of parameters 7: randomk"));
    EXPECT_TRUE(contains(plan, "bucket 7 of parameters 8: powersgd"));
    Gradients gradients(model);
    for (std::uint64_t step = 0; step < 3; ++step) {
      reduce(*session, gradients, step);
      EXPECT_TRUE(session->commit());
    }
  });
  // One node, or one rank in each: there is nothing to go through. Small buckets take one round.
  options.plan.one_shot_bytes = 1 << 14;
  options.bucket_bytes = 1 << 20;
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, fp32_model("int8"), options);
    EXPECT_TRUE(contains(session->description(), "bucket 0 of parameters 0 1 2 3 4: one_shot"));
  });
  for (const std::vector<int>& layout : {std::vector<int>{0, 0, 0}, {0, 1, 2}}) {
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const std::string plan = sealed_session(transport, fp32_model("int8"), over(nodes(layout)))->description();
      EXPECT_TRUE(contains(plan, ": two_shot") && !contains(plan, ": over ")) << plan;
    });
    Steps steps{.model = fp32_model("int8"), .options = over(nodes(layout)), .exponents = 3};
    const auto results = steps.run(3);
    steps.options.hierarchy = {};
    EXPECT_EQ(results, steps.run(3));
  }
}

TEST(Hierarchy, MisuseIsRefused) {
  const Model model = fp32_model("int8");
  const auto sealed = [&](const std::shared_ptr<Transport>& transport, Hierarchy hierarchy) {
    sealed_session(transport, model, over(std::move(hierarchy)));
  };
  run_all(4, [&](const std::shared_ptr<Transport>& transport) {
    EXPECT_ERROR(sealed(transport, nodes({0, 0, 1, 1}, "int4:round=stochastic")), Errc::unsupported,
                 "would round stochastically");
    EXPECT_ERROR(sealed(transport, nodes({0, 1})), Errc::invalid_argument, "the nodes of 2 ranks, and there are 4");
  });
  EXPECT_ERROR(Hierarchy::of_equal_nodes(6, 4), Errc::invalid_argument, "6 ranks are no multiple of 4 per node");
  EXPECT_EQ(Hierarchy::of_equal_nodes(4, 2).node_of_rank, (std::vector<int>{0, 0, 1, 1}));
  // Ranks that see other nodes.
  const auto outcomes = run_each(local::make(4), [&](const std::shared_ptr<Transport>& transport) {
    sealed(transport, transport->rank() == 2 ? nodes({0, 1, 0, 1}) : nodes({0, 0, 1, 1}));
  });
  expect_everywhere(outcomes, Errc::mismatch, "hierarchy of nodes 0 2 | 1 3");
}

TEST(Hierarchy, OfTheTransport) {
  const Model model = fp32_model("int8");
  // In one process all ranks share a node, and what was left to the transport is settled by seal.
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto open = open_session(transport, model, over(Hierarchy::of_transport(Bf16{})));
    EXPECT_TRUE(contains(open->description(), "hierarchy of nodes still to be found, inside bf16"));
    open->seal();
    EXPECT_TRUE(contains(open->description(), "hierarchy of nodes 0 1 2, inside bf16"));
    EXPECT_TRUE(contains(open->description(), "bucket 0 of parameters 0: two_shot"));
  });
  // Who names nodes and who leaves them to the transport find out, and so do those who want none.
  for (const Hierarchy& other : {nodes({0, 0, 1}), Hierarchy{}}) {
    const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
      sealed_session(transport, model, over(transport->rank() == 1 ? other : Hierarchy::of_transport()));
    });
    expect_everywhere(outcomes, Errc::mismatch, "hierarchy of nodes still to be found");
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(contains(outcome.message, "rank 1 has"));
    }
  }
}

TEST(Hierarchy, AsText) {
  EXPECT_EQ(parse_levels("node:2", 6).node_of_rank, (std::vector<int>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(parse_levels("node:3+1", 4).node_of_rank, (std::vector<int>{0, 0, 0, 1}));
  EXPECT_TRUE(parse_levels("auto", 4).automatic);
  SessionOptions options;
  set_codec(options, "hier(inside=int8:block=64,round=nearest, across=hadamard:32,seed=7+int4:block=32,round=nearest)",
            4);
  EXPECT_EQ(options.codec.spec(), parse_codec("hadamard:32,seed=7+int4:block=32,round=nearest").spec());
  EXPECT_EQ(options.hierarchy.inside.spec(), parse_codec("int8:block=64,round=nearest").spec());
  EXPECT_TRUE(options.hierarchy.automatic);
  set_codec(options, "hier( across=int4 ,levels=node:2)", 4);
  EXPECT_EQ(options.codec.spec(), "int4:block=64");
  EXPECT_EQ(options.hierarchy.inside.spec(), "exact");
  EXPECT_EQ(options.hierarchy.node_of_rank, (std::vector<int>{0, 0, 1, 1}));
  set_codec(options, "int8", 4);
  EXPECT_EQ(options.hierarchy.node_of_rank, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_ERROR(parse_levels("node:4", 6), Errc::invalid_argument, "6 ranks are no multiple of 4; name every node's");
  EXPECT_ERROR(set_codec(options, "hier(across=int4, levels=node:4)", 6), Errc::invalid_argument, "levels=node:4");
}

/// A rank that does not come is named by its number in the job, whatever the stage.
TEST(Hierarchy, ARankThatDoesNotComeIsNamed) {
  const Model model = fp32_model("int8");
  const SessionOptions common = over(nodes({0, 0, 1, 1}));
  const auto outcomes = run_each(local::make(4), [&](const std::shared_ptr<Transport>& transport) {
    // The one that waits for it itself is the first to lose patience.
    SessionOptions options = common;
    options.timeout = std::chrono::milliseconds(transport->rank() == 2 ? 300 : 5000);
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    if (transport->rank() == 3) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return;
    }
    reduce(*session, gradients, 1);
  });
  ASSERT_TRUE(outcomes[2].error);
  EXPECT_EQ(*outcomes[2].error, Errc::timeout);
  EXPECT_TRUE(contains(outcomes[2].message, "waiting for rank 3"));
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_TRUE(outcomes[rank].error);
    EXPECT_TRUE(contains(outcomes[rank].message, "waiting for rank 3"));
  }
}

}  // namespace
}  // namespace tightwire::testing::session_hierarchy
