// Ring and tree: the bits of two_shot and one_shot, the bytes and messages of their formulas, and taken where the cost
// model has them faster.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/simulation.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_forms {
namespace {

/// All that fits a ring, with sizes that are multiples of nothing.
Model wide_model() {
  return {{"a", {37, 61}, ElementType::f32, Codec{}},    {"scalar", {}, ElementType::f32, Codec{}},
          {"empty", {0, 7}, ElementType::f32, Codec{}},  {"as bf16", {2333}, ElementType::f32, Bf16{}},
          {"as fp16", {701}, ElementType::f32, Fp16{}},  {"bf16", {1065}, ElementType::bf16, Codec{}},
          {"fp16", {51, 20}, ElementType::f16, Codec{}}, {"one", {1}, ElementType::bf16, Codec{}}};
}

/// Bytes of all ranks, and what was not finite, after steps of which the second meets infinities and NaN.
struct Outcomes {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::uint64_t> nonfinite;
};
Outcomes outcomes(const Model& model, const SessionOptions& options, int ranks) {
  Outcomes all{std::vector<std::vector<std::byte>>(static_cast<std::size_t>(ranks)),
               std::vector<std::uint64_t>(static_cast<std::size_t>(ranks))};
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    for (int step = 0; step < 4; ++step) {
      gradients.fill_wide(Steps::seed(transport->rank(), step), 9);
      if (step == 1 && me + 2 >= static_cast<std::size_t>(ranks))
        for (std::size_t p = 0; p < model.size(); ++p)
          for (std::size_t i = p; i < model[p].count(); i += 97)
            gradients.set(p, i,
                          i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : (me % 2 == 0 ? 1.0f : -1.0f) / 0.0f);
      session->all_reduce(gradients.pointers());
      all.nonfinite[me] += session->step_statistics().nonfinite;
      step == 2 ? session->rollback() : static_cast<void>(session->commit());
      EXPECT_TRUE(gradients.guards_intact());
      const std::vector<std::byte> bytes = gradients.bytes();
      all.bytes[me].insert(all.bytes[me].end(), bytes.begin(), bytes.end());
    }
  });
  return all;
}
void expect_same(const Model& model, SessionOptions options, Algorithm form, Algorithm as, int ranks) {
  options.plan.algorithm = form;
  const Outcomes of_form = outcomes(model, options, ranks);
  options.plan.algorithm = as;
  const Outcomes known = outcomes(model, options, ranks);
  EXPECT_TRUE(all_equal(of_form.bytes)) << to_string(form) << " on " << ranks;
  EXPECT_TRUE(of_form.bytes == known.bytes) << to_string(form) << " on " << ranks;
  EXPECT_EQ(of_form.nonfinite, known.nonfinite) << to_string(form) << " on " << ranks;
}

TEST(Forms, RingHasTheBitsOfTwoShot) {
  for (const int ranks : {1, 2, 3, 4, 7})
    expect_same(wide_model(), in_pieces({}), Algorithm::ring, Algorithm::two_shot, ranks);
  SessionOptions options = in_pieces({});
  options.average = false;
  options.bucket_bytes = 1 << 20;
  options.plan.share_elements = 0;
  for (const bool feedback : {true, false}) {
    options.error_feedback = feedback;
    expect_same(wide_model(), options, Algorithm::ring, Algorithm::two_shot, 3);
  }
  // Residuals in bf16 are rounded by what is drawn for their elements.
  options.error_feedback = true;
  options.residual = ElementType::bf16;
  expect_same(wide_model(), options, Algorithm::ring, Algorithm::two_shot, 3);
}

TEST(Forms, TreeHasTheBitsOfOneShot) {
  for (const int ranks : {1, 2, 3, 4, 7, 8, 9})
    expect_same(mixed_model(), in_pieces({}), Algorithm::tree, Algorithm::one_shot, ranks);
}

TEST(Forms, BucketsInAnyOrder) {
  for (const Algorithm form : {Algorithm::ring, Algorithm::tree}) {
    Steps steps{.model = wide_model(), .options = in_pieces(form), .reduce = in_random_order(5)};
    steps.options.bucket_bytes = 1000;
    const auto results = steps.run(5);
    EXPECT_TRUE(all_equal(results));
    steps.options.plan.algorithm = form == Algorithm::ring ? Algorithm::two_shot : Algorithm::one_shot;
    EXPECT_TRUE(results == steps.run(5)) << to_string(form);
  }
}

/// What was saved of one form goes on as another: what sums lost is then another rank's to add.
TEST(Forms, StateGoesFromOneToAnother) {
  const Model model = wide_model();
  std::vector<std::vector<std::byte>> states(3), results(3);
  const auto step = [&](Session& session, std::size_t number) {
    Gradients gradients(model);
    gradients.fill_bell(10 * number + static_cast<std::size_t>(session.rank()));
    session.all_reduce(gradients.pointers());
    session.commit();
    return gradients.bytes();
  };
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, in_pieces(Algorithm::two_shot));
    step(*session, 1);
    states[me] = session->save();
    results[me] = step(*session, 2);
  });
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, in_pieces(Algorithm::ring));
    const std::vector<std::span<const std::byte>> all(states.begin(), states.end());
    session->restore(all);
    EXPECT_TRUE(step(*session, 2) == results[static_cast<std::size_t>(transport->rank())]);
  });
}

TEST(Forms, BytesAndMessagesAreTheFormulas) {
  // 2^14 elements of a model in bf16, and as many in fp32: chunks of 4096 elements. Up go fp32 sums, down what is
  // encoded.
  const Model model = {{"bf16", {1 << 14}, ElementType::f32, Bf16{}}, {"exact", {1 << 14}, ElementType::f32, Codec{}}};
  constexpr std::uint64_t kHead = sizeof(FrameHeader), kChunks = 8, kElements = 1 << 14;
  const int ranks = 5;
  for (const Algorithm form : {Algorithm::ring, Algorithm::tree}) {
    SessionOptions options;
    options.plan = {.algorithm = form, .share_elements = 4096};
    Transports transports;
    std::vector<std::shared_ptr<CountingTransport>> counters;
    for (auto& inner : local::make(ranks))
      transports.push_back(counters.emplace_back(std::make_shared<CountingTransport>(std::move(inner))));
    run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
      const int me = transport->rank();
      const CountingTransport& counter = *counters[static_cast<std::size_t>(me)];
      const auto session = sealed_session(transport, model, options);
      const std::uint64_t sent = counter.sent_bytes(), messages = counter.messages();
      Gradients gradients(model);
      gradients.fill_bell(1);
      session->all_reduce(gradients.pointers());
      session->commit();
      const std::uint64_t up = kChunks * kHead + 8 * kElements, down = kChunks * kHead + 6 * kElements;
      const std::uint64_t formula = form == Algorithm::tree ? 4 * down : (me < 4 ? up : 0) + (me > 0 ? down : 0);
      EXPECT_EQ(session->last_step().sent_bytes, formula) << to_string(form) << " " << me;
      EXPECT_EQ(counter.sent_bytes() - sent, formula);
      EXPECT_EQ(session->bucket_plan(0).wire_bytes(me), formula);
      // Sends and receives: two neighbours in each direction, or 3 = log2(5) peers.
      const std::uint64_t per_chunk = form == Algorithm::tree ? 6 : me == 0 || me == 4 ? 2 : 4;
      EXPECT_EQ(counter.messages() - messages, kChunks * per_chunk);
    });
  }
}

TEST(Forms, AreTakenWhereTheCostModelHasThemFaster) {
  const auto plan_of = [](const Model& model, SessionOptions options, int ranks) {
    std::vector<Parameter> parameters;
    for (const Tensor& tensor : model) {
      parameters.push_back({.name = tensor.name, .shape = tensor.shape, .type = tensor.type});
      options.policy.rules.push_back({.name = tensor.name, .codec = tensor.codec});
    }
    options.policy.exact_by_default = {};
    ParameterList list = tightwire::detail::filled_list(parameters, {}, ranks, options.bucket_bytes);
    const tightwire::detail::ImaginedTransport transport(0, ranks);
    ErrorMemory memory;
    std::vector<ParameterMemory> of_parameters(parameters.size());
    BucketPlanning(options, transport, memory).plan(list.buckets().front(), list.parameters(), of_parameters);
    return list.buckets().front().plan.algorithm;
  };
  const Model half = {{"w", {4096, 1024}, ElementType::bf16, Codec{}}}, tiny = {{"w", {16}, ElementType::f32, Codec{}}};
  SessionOptions nodes;
  nodes.hierarchy = Hierarchy::of_equal_nodes(16, 8);
  EXPECT_EQ(plan_of(half, nodes, 16), Algorithm::ring) << "8 ranks share a link";
  EXPECT_EQ(plan_of({{"w", {4096, 1024}, ElementType::bf16, Int8{}}}, nodes, 16), Algorithm::two_shot);
  EXPECT_EQ(plan_of(half, {}, 16), Algorithm::two_shot) << "nobody shares a link";
  nodes.hierarchy.node_of_rank = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  EXPECT_EQ(plan_of(half, nodes, 16), Algorithm::two_shot) << "every hop would leave the node";
  EXPECT_EQ(plan_of(tiny, {}, 64), Algorithm::one_shot);
  EXPECT_EQ(plan_of(tiny, {}, 512), Algorithm::tree);
}

TEST(Forms, ARingRefusesWhatIsBelow16Bits) {
  const SessionOptions options = in_pieces(Algorithm::ring);
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    for (const char* codec : {"int8", "hadamard:32+bf16"})
      EXPECT_ERROR(sealed_session(transport, {{"w", {300}, ElementType::f32, parse_codec(codec)}}, options),
                   Errc::unsupported, "\"w\" is " + parse_codec(codec).spec());
    EXPECT_ERROR(sealed_session(transport, {{"h", {300}, ElementType::bf16, Fp16{}}}, options), Errc::unsupported,
                 "\"h\" is fp16");
  });
}

TEST(Forms, ARankThatDoesNotComeIsNamed) {
  for (const Algorithm form : {Algorithm::ring, Algorithm::tree}) {
    SessionOptions options = in_pieces(form);
    options.timeout = std::chrono::milliseconds(300);
    const Model model = {{"w", {3000}, ElementType::f32, Codec{}}};
    const auto ended = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, options);
      Gradients gradients(model);
      gradients.fill_bell(1);
      if (transport->rank() != 1) return session->all_reduce(gradients.pointers());
      std::this_thread::sleep_for(2 * options.timeout);
    });
    for (const std::size_t rank : {0u, 2u}) {
      EXPECT_TRUE(ended[rank].error == Errc::timeout || ended[rank].error == Errc::peer_lost) << ended[rank].message;
      EXPECT_TRUE(contains(ended[rank].message, "waiting for rank 1")) << to_string(form);
    }
  }
}

}  // namespace
}  // namespace tightwire::testing::session_forms
