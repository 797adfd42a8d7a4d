// What a Session over nodes saves is all that it goes on from, in the same layout bit for bit, in any other with
// everything that residuals still hold.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_hierarchy_state {
namespace {

using State = std::vector<std::byte>;

/// Where ranks are, and how messages inside a node are encoded. No nodes: flat.
struct Layout {
  int ranks;
  std::vector<int> node_of_rank;
  std::string inside = "exact";
  Algorithm algorithm = Algorithm::two_shot;
  ElementType residual = ElementType::f32;

  SessionOptions options() const {
    SessionOptions options = in_pieces(algorithm);
    options.seed = 5;
    options.residual = residual;
    if (!node_of_rank.empty()) options.hierarchy = {.node_of_rank = node_of_rank, .inside = parse_codec(inside)};
    return options;
  }
  std::string name() const {
    std::string text = std::to_string(ranks) + " ranks, " + to_string(algorithm) + ", nodes";
    for (const int node : node_of_rank) text += " " + std::to_string(node);
    return text + ", inside " + inside + ", residuals in " + std::string(to_string(residual));
  }
};

Model model_of(const std::string& across) {
  return {{"a", {37, 61}, ElementType::f32, parse_codec(across)},
          {"b", {1500}, ElementType::f32, parse_codec(across)},
          {"half", {700}, ElementType::bf16, Int8{}}};  // its bucket goes flat
}

void step_on(Session& session, Gradients& gradients, std::uint64_t step) {
  reduce(session, gradients, step);
  step % 5 == 1 ? session.rollback() : static_cast<void>(session.commit());
}
State five_steps(Session& session, const Model& model) {
  Gradients gradients(model);
  for (std::uint64_t step = 0; step < 5; ++step) step_on(session, gradients, step);
  return session.save();
}
/// Results of further steps, and the state then.
State go_on(Session& session, const Model& model) {
  Gradients gradients(model);
  State all;
  for (std::uint64_t step = 10; step < 14; ++step) {
    step_on(session, gradients, step);
    const auto bytes = gradients.bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}
std::vector<std::span<const std::byte>> views(const std::vector<State>& states) {
  return {states.begin(), states.end()};
}

TEST(HierarchyState, GoesOnBitForBit) {
  const Layout layouts[] = {{4, {0, 0, 1, 1}},
                            {4, {0, 1, 0, 1}, "int8"},
                            {6, {5, 5, 5, 2, 2, 2}, "bf16"},
                            {4, {0, 0, 0, 1}, "int8"},
                            {4, {0, 0, 0, 1}, "int8", Algorithm::two_shot, ElementType::bf16}};
  for (const char* across : {"exact", "int4", "hadamard:64+int4:block=64,round=stochastic"})
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(std::string(across) + ", " + layout.name());
      Model model = model_of(across);
      model.push_back({"exact", {65}, ElementType::f32, Codec{}});
      SessionOptions options = layout.options();
      options.momentum.factor = layout.inside == "int8" && layout.residual == ElementType::f32 ? 0.9f : 0;
      options.momentum.optimizer_momentum = 0;
      const auto count = static_cast<std::size_t>(layout.ranks);
      std::vector<State> states(count), straight(count), own(count), of_all(count), last(count);
      run_all(layout.ranks, [&](const std::shared_ptr<Transport>& transport) {
        const auto me = static_cast<std::size_t>(transport->rank());
        const auto session = sealed_session(transport, model, options);
        states[me] = five_steps(*session, model);
        straight[me] = go_on(*session, model);
        last[me] = session->save();
      });
      run_all(layout.ranks, [&](const std::shared_ptr<Transport>& transport) {
        const auto me = static_cast<std::size_t>(transport->rank());
        const auto session = sealed_session(transport, model, options);
        session->restore(states[me]);
        EXPECT_EQ(session->save(), states[me]);
        own[me] = go_on(*session, model);
        EXPECT_EQ(session->save(), last[me]);
        const auto other = sealed_session(transport, model, options);
        other->restore(views(states));
        EXPECT_EQ(other->save(), states[me]);
        of_all[me] = go_on(*other, model);
        const auto fresh = sealed_session(transport, model, options);
        EXPECT_NE(go_on(*fresh, model), straight[me]) << "nothing of the state matters";
      });
      EXPECT_EQ(own, straight);
      EXPECT_EQ(of_all, straight);
    }
}

using Totals = std::vector<std::vector<double>>;

/// What residuals still add to the mean of all ranks, by parameter and element; and every node has the same of what is
/// lost on the way back.
Totals pending(const std::vector<State>& states, const std::vector<Parameter>& parameters) {
  Totals total, result, copies;
  for (const Parameter& parameter : parameters) total.emplace_back(parameter.count, 0.0);
  result = copies = total;
  for (const State& bytes : states) {
    const SavedState state(bytes, parameters);
    for (const state::Record& record : state.records) {
      if (!state::of_parameter(record.kind)) continue;
      const bool whole = record.kind == state::Kind::sender_residual;
      const bool of_rank = whole || record.kind == state::Kind::node_residual;
      for (std::size_t i = 0; i < record.elements(); ++i) {
        const std::size_t at = (whole ? 0 : record.detail) + i;
        const auto x = static_cast<double>(record.at(i));
        if (record.kind == state::Kind::result_residual_copy)
          copies[record.number][at] = x;
        else
          total[record.number][at] += of_rank ? x / static_cast<double>(state.ranks) : x;
        if (record.kind == state::Kind::result_residual) result[record.number][at] = x;
      }
    }
  }
  EXPECT_EQ(copies, result);
  return total;
}

struct Held {
  std::vector<State> states;
  Totals holds;
};

Held saved(const Layout& layout, const Model& model) {
  Held run{std::vector<State>(static_cast<std::size_t>(layout.ranks)), {}};
  std::vector<Parameter> parameters;
  run_all(layout.ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, layout.options());
    run.states[static_cast<std::size_t>(transport->rank())] = five_steps(*session, model);
    if (transport->rank() == 0) parameters = session->parameters();
  });
  run.holds = pending(run.states, parameters);
  return run;
}
/// The same of Sessions that took up all states; and they go on with the same bits on all ranks.
Held handed_on(const Held& from, const Layout& to, const Model& model) {
  Held run{std::vector<State>(static_cast<std::size_t>(to.ranks)), {}};
  std::vector<State> after(run.states.size());
  std::vector<Parameter> parameters;
  run_all(to.ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, to.options());
    session->restore(views(from.states));
    run.states[me] = session->save();
    after[me] = go_on(*session, model);
    if (me == 0) parameters = session->parameters();
  });
  EXPECT_TRUE(all_equal(after));
  run.holds = pending(run.states, parameters);
  return run;
}

TEST(HierarchyState, OtherLayoutsLoseNothing) {
  const Layout layouts[] = {{4, {}},
                            {3, {}},
                            {4, {}, "exact", Algorithm::one_shot},
                            {4, {0, 0, 1, 1}},
                            {4, {0, 1, 1, 0}, "bf16"},
                            {5, {0, 0, 0, 1, 1}},
                            {4, {0, 0, 0, 1}, "int8"}};
  const Model model = model_of("int4");
  for (const Layout& from : layouts) {
    const Held before = saved(from, model);
    double largest = 0;
    for (const auto& parameter : before.holds)
      for (const double x : parameter) largest = std::max(largest, std::abs(x));
    EXPECT_GT(largest, 1e-2) << "there was nothing to hand on";
    for (const Layout& to : layouts) {
      SCOPED_TRACE("from " + from.name() + " to " + to.name());
      const Held after = handed_on(before, to, model);
      for (std::size_t p = 0; p < before.holds.size(); ++p)
        for (std::size_t i = 0; i < before.holds[p].size(); ++i)
          ASSERT_NEAR(after.holds[p][i], before.holds[p][i], 1e-5) << "parameter " << p << " element " << i;
    }
  }
}

double sum_of_magnitudes(const Totals& totals) {
  double sum = 0;
  for (const auto& parameter : totals)
    for (const double x : parameter) sum += std::abs(x);
  return sum;
}

TEST(HierarchyState, OtherLayoutsLoseNoMoreThanBf16Rounds) {
  const Layout layouts[] = {{3, {}, "exact", Algorithm::two_shot, ElementType::bf16},
                            {4, {0, 0, 0, 1}, "int8", Algorithm::two_shot, ElementType::bf16},
                            {5, {0, 0, 0, 1, 1}, "int8"}};
  const Model model = model_of("int4");
  for (const Layout& from : layouts) {
    const Held before = saved(from, model);
    EXPECT_GT(sum_of_magnitudes(before.holds), 1) << "there was nothing to hand on";
    for (const Layout& to : layouts) {
      SCOPED_TRACE("from " + from.name() + " to " + to.name());
      Totals lost = handed_on(before, to, model).holds;
      for (std::size_t p = 0; p < lost.size(); ++p)
        for (std::size_t i = 0; i < lost[p].size(); ++i) lost[p][i] -= before.holds[p][i];
      EXPECT_LT(sum_of_magnitudes(lost), 0x1p-7 * sum_of_magnitudes(before.holds));
    }
  }
}

/// Of so many ranks: everything that went in came out, or is still held by residuals; and all hold the same bits.
void expect_nothing_lost(const Layout& layout, const std::string& across) {
  SCOPED_TRACE(layout.name() + ", across " + across);
  const Model model = {{"a", {7, 61}, ElementType::f32, parse_codec(across)},
                       {"b", {600}, ElementType::f32, parse_codec(across)}};
  std::vector<State> states(static_cast<std::size_t>(layout.ranks)), results = states;
  std::vector<Parameter> parameters;
  Totals out;
  for (const Tensor& tensor : model) out.emplace_back(tensor.count(), 0.0);
  Totals in = out;
  run_all(layout.ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    SessionOptions options = layout.options();
    options.plan.share_elements = 128;
    options.policy.exact_by_default = {};
    const auto session = sealed_session(transport, model, options);
    EXPECT_TRUE(session->description().find(": over ") != std::string::npos) << session->description();
    Gradients gradients(model);
    for (std::uint64_t step = 0; step < 3; ++step) {
      reduce(*session, gradients, step);
      EXPECT_TRUE(session->commit());
      const State bytes = gradients.bytes();
      results[me].insert(results[me].end(), bytes.begin(), bytes.end());
      if (me != 0) continue;
      Gradients of_rank(model);
      for (std::size_t p = 0; p < model.size(); ++p)
        for (std::size_t i = 0; i < out[p].size(); ++i) out[p][i] += static_cast<double>(gradients.get(p, i));
      for (int rank = 0; rank < layout.ranks; ++rank) {
        of_rank.fill_bell(100 * step + static_cast<std::uint64_t>(rank));
        for (std::size_t p = 0; p < model.size(); ++p)
          for (std::size_t i = 0; i < in[p].size(); ++i)
            in[p][i] += static_cast<double>(of_rank.get(p, i)) / layout.ranks;
      }
    }
    states[me] = session->save();
    if (me == 0) parameters = session->parameters();
  });
  EXPECT_TRUE(all_equal(results));
  for (const std::string& codec : {across, layout.inside})  // residuals of rotated elements are rotated
    if (!parse_codec(codec).coder(ElementType::f32)->residual_basis().empty()) return;
  const Totals held = pending(states, parameters);
  for (std::size_t p = 0; p < in.size(); ++p)
    for (std::size_t i = 0; i < in[p].size(); ++i)
      ASSERT_NEAR(out[p][i] + held[p][i], in[p][i], 2e-5 * (1 + std::abs(in[p][i]) + std::abs(held[p][i])))
          << "parameter " << p << " element " << i;
}

TEST(HierarchyState, NothingIsLostByAnyCodecInAnyLayout) {
  for (const BuiltinCodec& codec : builtin_codecs()) {
    const std::string name(codec.name);
    const auto coder = parse_codec(name).coder(ElementType::f32);
    expect_nothing_lost({4, {0, 0, 1, 1}}, name);
    if (!coder->stochastic(true)) expect_nothing_lost({4, {0, 0, 0, 1}, name}, "int4");
  }
  for (const Layout& layout : {Layout{6, {0, 0, 1, 1, 2, 2}}, Layout{6, {5, 5, 5, 2, 2, 2}}, Layout{4, {0, 0, 0, 1}},
                               Layout{16, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}}})
    for (const char* const inside : {"exact", "bf16", "int8"}) {
      Layout with = layout;
      with.inside = inside;
      expect_nothing_lost(with, "int4");
      expect_nothing_lost(with, "exact");
    }
}

/// What is exact across has residuals inside only, and goes back and forth with them.
TEST(HierarchyState, OfCodecsInsideOnly) {
  const Model model = model_of("exact"), lossy = model_of("int8");
  const Layout inside{4, {0, 0, 1, 1}, "int4"}, flat{4, {}};
  const Held of_flat = saved(flat, lossy), of_inside = saved(inside, model);
  const Held there = handed_on(of_flat, inside, model), back = handed_on(of_inside, flat, lossy);
  for (std::size_t p = 0; p < of_flat.holds.size(); ++p)
    for (std::size_t i = 0; i < of_flat.holds[p].size(); ++i) {
      ASSERT_NEAR(there.holds[p][i], of_flat.holds[p][i], 1e-5) << "parameter " << p << " element " << i;
      ASSERT_NEAR(back.holds[p][i], of_inside.holds[p][i], 1e-5) << "parameter " << p << " element " << i;
    }
}

/// Momentum of what all ranks hold alike stays alike, on more ranks and fewer; of topk it becomes that of the mean.
TEST(HierarchyState, MomentaOfMeansStayTheSameOnAllRanks) {
  const Model model = model_of("int4");
  Model chosen = model;
  for (Tensor& tensor : chosen) tensor.codec = parse_codec("topk:ratio=0.1");
  const auto momenta = [](const State& bytes, const std::vector<Parameter>& parameters) {
    std::vector<std::vector<float>> all(parameters.size());
    const SavedState state(bytes, parameters);
    for (const state::Record& record : state.records)
      for (std::size_t i = 0; record.kind == state::Kind::momentum && i < record.elements(); ++i)
        all[record.number].push_back(record.at(i));
    return all;
  };
  const auto with_momentum = [](const Layout& layout, bool average) {
    SessionOptions options = layout.options();
    options.momentum.factor = 0.9f;
    options.momentum.optimizer_momentum = 0;
    options.average = average;
    return options;
  };
  for (const bool average : {true, false})
    for (const Model& before : {model, chosen}) {
      std::vector<State> states(2);
      std::vector<std::vector<float>> expected;
      run_all(2, [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, before, with_momentum({2, {}}, average));
        states[static_cast<std::size_t>(transport->rank())] = five_steps(*session, before);
      });
      run_all(2, [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, model, with_momentum({2, {}}, average));
        if (transport->rank() != 0) return;
        expected = momenta(states[0], session->parameters());
        const auto other = momenta(states[1], session->parameters());
        for (std::size_t p = 0; p < expected.size(); ++p)
          for (std::size_t i = 0; expected != other && i < expected[p].size(); ++i)
            expected[p][i] = average ? expected[p][i] * 0.5f + other[p][i] * 0.5f : expected[p][i] + other[p][i];
      });
      for (const Layout& to : {Layout{3, {}}, Layout{1, {}}, Layout{4, {0, 0, 1, 1}, "int8"}})
        run_all(to.ranks, [&](const std::shared_ptr<Transport>& transport) {
          const auto session = sealed_session(transport, model, with_momentum(to, average));
          session->restore(views(states));
          EXPECT_EQ(momenta(session->save(), session->parameters()), expected) << to.name();
        });
    }
}

/// The error of each rank that took up its own state of one layout in another.
std::vector<std::string> refusals(const Held& from, const Layout& to, const Model& model, bool all = false) {
  std::vector<std::string> texts(static_cast<std::size_t>(to.ranks));
  run_all(to.ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, to.options());
    const State before = session->save();
    try {
      all ? session->restore(views(from.states)) : session->restore(from.states[me]);
    } catch (const Error& error) {
      texts[me] = error.what();
    }
    EXPECT_EQ(session->save(), before);
  });
  return texts;
}

TEST(HierarchyState, WhatWouldBeLostIsRefused) {
  const Model model = model_of("int4");
  const Layout flat{4, {}}, nodes{4, {0, 0, 1, 1}}, others{4, {0, 1, 0, 1}}, eight{4, {0, 0, 1, 1}, "int8"};
  const Held of_flat = saved(flat, model), of_nodes = saved(nodes, model), of_eight = saved(eight, model);
  for (const auto& [from, to] : {std::pair{&of_flat, &nodes},
                                 {&of_nodes, &flat},
                                 {&of_nodes, &others},
                                 {&of_eight, &nodes},
                                 {&of_nodes, &eight}})
    for (const std::string& text : refusals(*from, *to, model)) {
      if (contains(text, "rank 1 could not")) continue;  // of who would lose nothing himself
      EXPECT_TRUE(contains(text, "give the states of all"));
    }
  for (const std::string& text : refusals(of_nodes, nodes, model_of("exact"), true))
    EXPECT_TRUE(contains(text, "\"a\", which has none in this Session and would lose it"));
  for (const std::string& text : refusals(of_nodes, nodes, model_of("hadamard:64+int4:block=64"), true))
    EXPECT_TRUE(contains(text, "residuals of \"a\" are under no rotation, and in this Session under hadamard:64"));
}

}  // namespace
}  // namespace tightwire::testing::session_hierarchy_state
