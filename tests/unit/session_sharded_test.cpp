// reduce_scatter, all_gather and broadcast in a Session: what FSDP and ZeRO are made of.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_sharded {
namespace {

/// A buffer that goes through an operation.
struct Sharded {
  Operation operation = Operation::reduce_scatter;
  Codec codec = {};
  std::size_t shard = 1000;  ///< elements
  ElementType type = ElementType::f32;
  int root = 0;
};

SessionOptions options_for(const Codec& codec) {
  SessionOptions options = in_pieces(Algorithm::two_shot);
  options.codec = codec;
  options.policy.exact_by_default = {};
  return options;
}
std::vector<std::int64_t> shape_for(const Sharded& what, int ranks) {
  return {ranks, static_cast<std::int64_t>(what.shard)};
}
Model model_for(const Sharded& what, int ranks) { return {{"w", shape_for(what, ranks), what.type, what.codec}}; }

std::unique_ptr<Session> open(const std::shared_ptr<Transport>& transport, const Sharded& what,
                              SessionOptions options) {
  auto session = std::make_unique<Session>(transport, std::move(options));
  session->add("w", shape_for(what, transport->size()), what.type, what.operation, what.root);
  session->seal();
  return session;
}
std::unique_ptr<Session> open(const std::shared_ptr<Transport>& transport, const Sharded& what) {
  return open(transport, what, options_for(what.codec));
}

std::vector<float> part(const std::vector<float>& whole, int rank, std::size_t shard) {
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * shard);
  return {begin, begin + static_cast<std::ptrdiff_t>(shard)};
}

std::vector<Sharded> cases(Operation operation) {
  std::vector<Sharded> all;
  for (const char* codec :
       {"exact", "int8", "int4:block=32,round=stochastic", "bf16", "hadamard:64+int4", "mxfp8-e4m3"})
    for (const std::size_t shard : {0ul, 1ul, 777ul, 3000ul})
      for (const ElementType type : {ElementType::f32, ElementType::bf16})
        all.push_back({operation, parse_codec(codec), shard, type});
  return all;
}

/// Of exact sums it is the part of what all_reduce gives, to the bit; of others, over all steps, nothing is lost.
TEST(Sharded, ReduceScatterGivesEveryRankItsPartOfTheSum) {
  for (const int ranks : {1, 2, 3, 5})
    for (const Sharded& what : cases(Operation::reduce_scatter)) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + what.codec.spec() + ", shards of " +
                   std::to_string(what.shard) + " " + std::string(to_string(what.type)));
      const Model model = model_for(what, ranks);
      const std::size_t count = model[0].count();
      std::vector<std::vector<double>> in(static_cast<std::size_t>(ranks), std::vector<double>(count)), kept = in;
      std::vector<double> out(count);
      run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
        const auto me = static_cast<std::size_t>(transport->rank());
        const auto session = open(transport, what);
        const auto reference = sealed_session(transport, model, in_pieces(Algorithm::two_shot));
        Gradients gradients(model), same_gradients(model);
        for (std::uint64_t step = 0; step < 3; ++step) {
          for (Gradients* buffer : {&gradients, &same_gradients}) buffer->fill_wide(10 * step + me + 1, 3);
          for (std::size_t i = 0; i < count; ++i) in[me][i] += static_cast<double>(gradients.get(0, i));
          session->run(0, gradients.pointers()[0]);
          session->commit();
          EXPECT_TRUE(gradients.guards_intact());
          for (std::size_t i = 0; i < what.shard; ++i)
            out[me * what.shard + i] += static_cast<double>(gradients.get(0, me * what.shard + i));
          if (!what.codec.coder(what.type)->lossless(what.type)) continue;
          reference->all_reduce(same_gradients.pointers());
          reference->commit();
          EXPECT_EQ(part(gradients.values(0), transport->rank(), what.shard),
                    part(same_gradients.values(0), transport->rank(), what.shard));
        }
        const auto residual = session->sender_residual(0);
        for (std::size_t i = 0; i < residual.size(); ++i) kept[me][i] = static_cast<double>(residual[i]);
      });
      // The sum in a bf16 buffer is rounded; nobody but its owner sees it, and it has no residual.
      const double tolerance = what.type == ElementType::f32 ? 1e-5 : 0.1;
      if (!what.codec.coder(what.type)->residual_basis().empty()) continue;
      for (std::size_t i = 0; i < count; ++i) {
        double wanted = 0;
        for (std::size_t rank = 0; rank < in.size(); ++rank) wanted += (in[rank][i] - kept[rank][i]) / ranks;
        ASSERT_NEAR(out[i], wanted, tolerance * (1 + std::abs(wanted))) << "element " << i;
      }
    }
}

TEST(Sharded, AllGatherGivesAllRanksTheSameBytes) {
  for (const int ranks : {1, 2, 3, 5})
    for (const Sharded& what : cases(Operation::all_gather)) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + what.codec.spec() + ", shards of " +
                   std::to_string(what.shard));
      const Model model = model_for(what, ranks);
      const std::size_t count = model[0].count();
      std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(ranks));
      std::vector<double> in(count), out(count), kept(count);
      run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
        const auto me = static_cast<std::size_t>(transport->rank());
        const auto session = open(transport, what);
        Gradients weights(model);
        for (std::uint64_t step = 0; step < 3; ++step) {
          weights.fill_wide(10 * step + me + 1, 3);
          const std::vector<float> before = weights.values(0);
          for (std::size_t i = me * what.shard; i < (me + 1) * what.shard; ++i) in[i] += static_cast<double>(before[i]);
          session->run(0, weights.pointers()[0]);
          session->commit();
          EXPECT_TRUE(weights.guards_intact());
          const auto bytes = weights.bytes();
          results[me].insert(results[me].end(), bytes.begin(), bytes.end());
          for (std::size_t i = 0; i < count && me == 0; ++i) out[i] += static_cast<double>(weights.get(0, i));
          if (!what.codec.coder(what.type)->lossless(what.type)) continue;
          EXPECT_EQ(part(weights.values(0), transport->rank(), what.shard),
                    part(before, transport->rank(), what.shard));
        }
        const auto residual = session->sender_residual(0);
        for (std::size_t i = 0; i < residual.size(); ++i) kept[me * what.shard + i] = static_cast<double>(residual[i]);
      });
      EXPECT_TRUE(all_equal(results));
      // A residual is of what the wire holds; a bf16 buffer rounds that once more.
      const double tolerance = what.type == ElementType::f32 ? 1e-5 : 0.1;
      if (!what.codec.coder(what.type)->residual_basis().empty()) continue;
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_NEAR(out[i] + kept[i], in[i], tolerance * (1 + 3 * std::abs(in[i]))) << "element " << i;
    }
}

TEST(Sharded, BroadcastGivesAllRanksWhatTheRootHas) {
  for (const int ranks : {1, 2, 4})
    for (const char* codec : {"exact", "int8"})
      for (int root = 0; root < ranks; ++root) {
        const Sharded what{Operation::broadcast, parse_codec(codec), 500, ElementType::f32, root};
        const Model model = model_for(what, ranks);
        std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(ranks));
        run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
          const auto session = open(transport, what);
          Gradients weights(model), of_root(model);
          weights.fill_bell(static_cast<std::uint64_t>(transport->rank()));
          of_root.fill_bell(static_cast<std::uint64_t>(root));
          session->run(0, weights.pointers()[0]);
          session->commit();
          results[static_cast<std::size_t>(transport->rank())] = weights.bytes();
          const std::vector<float> got = weights.values(0), wanted = of_root.values(0);
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], wanted[i], std::string(codec) == "exact" ? 0 : 0.02);
        });
        EXPECT_TRUE(all_equal(results));
      }
}

TEST(Sharded, BytesAreThoseOfThePlan) {
  for (const Operation operation : {Operation::reduce_scatter, Operation::all_gather, Operation::broadcast})
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const Sharded what{operation, Int8{}, 1024};
      const Model model = model_for(what, 3);
      SessionOptions options = options_for(what.codec);
      options.plan.share_elements = 8192;
      const auto session = open(transport, what, options);
      Gradients gradients(model);
      session->run(0, gradients.pointers()[0]);
      const StepStatistics& step = session->step_statistics();
      EXPECT_EQ(step.sent_bytes, session->bucket_plan(0).wire_bytes(transport->rank()));
      EXPECT_EQ(step.gradient_bytes, 3u * 1024 * 4);
      const auto coder = what.codec.coder(ElementType::f32);
      const std::size_t shard = coder->wire_bytes(1024), header = sizeof(FrameHeader);
      const bool root = transport->rank() == 0;
      EXPECT_EQ(step.sent_bytes, operation == Operation::reduce_scatter ? 2 * (header + shard + header)
                                 : operation == Operation::all_gather   ? 2 * (header + shard)
                                 : root                                 ? 2 * (header + coder->wire_bytes(3 * 1024))
                                                                        : 0);
      session->commit();
    });
}

/// Beside ordinary parameters, under way at once, started in different orders on different ranks. What goes over nodes
/// are the ordinary ones.
TEST(Sharded, BesideAllReduceInAnyOrder) {
  constexpr int kRanks = 3;
  std::vector<std::vector<std::byte>> flat_weights;
  for (const std::vector<int>& nodes : {std::vector<int>{}, {0, 0, 1}}) {
    std::vector<std::vector<std::byte>> gathered(kRanks), weights(kRanks);
    run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
      const auto me = static_cast<std::size_t>(transport->rank());
      SessionOptions options = options_for(Int8{});
      options.hierarchy.node_of_rank = nodes;
      Session session(transport, options);
      Model model = {{"a", {2000}}, {"b", {37, 61}}};
      for (const Tensor& tensor : model) session.add(tensor.name, tensor.shape, tensor.type);
      const Sharded gradient{Operation::reduce_scatter, Int8{}, 2000}, weight{Operation::all_gather, Int8{}, 2000};
      session.add("gradient", shape_for(gradient, kRanks), ElementType::f32, gradient.operation);
      session.add("weight", shape_for(weight, kRanks), ElementType::f32, weight.operation);
      session.seal();
      EXPECT_EQ(session.description().find(": over 2 nodes") != std::string::npos, !nodes.empty());
      model.push_back({"gradient", shape_for(gradient, kRanks)});
      model.push_back({"weight", shape_for(weight, kRanks)});
      Gradients buffers(model);
      const auto keep = [&](std::size_t parameter, std::vector<std::byte>& all) {
        const std::vector<float> values = buffers.values(parameter);
        const auto bytes = std::as_bytes(std::span(values));
        all.insert(all.end(), bytes.begin(), bytes.end());
      };
      for (std::uint64_t step = 0; step < 5; ++step) {
        buffers.fill_bell(10 * step + me);
        in_random_order(step)(session, buffers);
        session.commit();
        keep(0, gathered[me]);
        keep(model.size() - 1, weights[me]);
      }
    });
    EXPECT_TRUE(all_equal(gathered));
    EXPECT_TRUE(all_equal(weights));
    if (nodes.empty()) flat_weights = weights;
    EXPECT_EQ(weights, flat_weights);
  }
}

TEST(Sharded, NotFiniteIsKnownToAllRanksAndTheStepIsSkippedAlike) {
  for (const Operation operation : {Operation::reduce_scatter, Operation::all_gather, Operation::broadcast}) {
    const Sharded what{operation, Int8{}, 600};
    SessionOptions options = options_for(what.codec);
    options.nonfinite = NonFinitePolicy::skip_step;
    run_all(3, [&](const std::shared_ptr<Transport>& transport) {
      const Model model = model_for(what, 3);
      const auto session = open(transport, what, options);
      Gradients gradients(model);
      gradients.fill_bell(1);
      // Of rank 0, in the shard of rank 0, which is all that every operation looks at.
      if (transport->rank() == 0) gradients.set(0, 5, std::numeric_limits<float>::infinity());
      const std::vector<float> before = residuals(*session);
      session->run(0, gradients.pointers()[0]);
      EXPECT_GT(session->step_statistics().nonfinite, 0u);
      EXPECT_FALSE(session->commit());
      EXPECT_TRUE(same(residuals(*session), before));
      gradients.fill_bell(2);
      session->run(0, gradients.pointers()[0]);
      EXPECT_EQ(session->step_statistics().nonfinite, 0u);
      EXPECT_TRUE(session->commit());
    });
  }
}

TEST(Sharded, StateGoesOnBitForBit) {
  for (const Operation operation : {Operation::reduce_scatter, Operation::all_gather, Operation::broadcast}) {
    const Sharded what{operation, parse_codec("int4:round=stochastic"), 600};
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const Model model = model_for(what, 2);
      const auto session = open(transport, what), second = open(transport, what);
      Gradients gradients(model), others(model);
      const auto step = [&](Session& which, Gradients& buffer, std::uint64_t seed) {
        buffer.fill_bell(seed);
        which.run(0, buffer.pointers()[0]);
        which.commit();
      };
      step(*session, gradients, 1);
      second->restore(session->save());
      for (std::uint64_t seed = 2; seed < 4; ++seed) {
        step(*session, gradients, seed);
        step(*second, others, seed);
        EXPECT_EQ(gradients.bytes(), others.bytes());
      }
      EXPECT_EQ(session->save(), second->save());
    });
  }
}

TEST(Sharded, MisuseIsRefused) {
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto sealed = [&](const Sharded& what, std::vector<std::int64_t> shape) {
      Session session(transport, options_for(what.codec));
      session.add("w", std::move(shape), what.type, what.operation, what.root);
      session.seal();
    };
    EXPECT_ERROR(sealed({}, {100}), Errc::invalid_argument, "100 elements are no multiple of 3 ranks");
    EXPECT_ERROR(sealed({.codec = parse_codec("topk:ratio=0.1")}, {300}), Errc::unsupported,
                 "seal: \"w\" is of reduce_scatter: topk:ratio=0.1 is for all_reduce");
    EXPECT_ERROR(sealed({.operation = Operation::all_gather, .codec = parse_codec("powersgd")}, {3, 100}),
                 Errc::unsupported, "is of all_gather: powersgd");
    EXPECT_ERROR(sealed({.operation = Operation::broadcast, .root = 3}, {300}), Errc::invalid_argument,
                 "comes from rank 3 of 3");
    Session session(transport, options_for(Int8{}));
    const ParameterId ids[] = {session.add("a", {30, 3}),
                               session.add("b", {3, 30}, ElementType::f32, Operation::all_gather)};
    EXPECT_ERROR(session.add_bucket(ids), Errc::invalid_argument, "\"b\" is of all_gather, which has a bucket");
    session.seal();
    EXPECT_ERROR(session.run(7, nullptr), Errc::invalid_argument, "run: there is no parameter 7");
    EXPECT_ERROR(session.run(1, nullptr), Errc::invalid_argument, "the pointer for \"b\" is null");
  });
  // Another root on one rank: everyone hears of it.
  for (const Outcome& outcome : run_each(local::make(2), [](const std::shared_ptr<Transport>& transport) {
         open(transport, {.operation = Operation::broadcast, .root = transport->rank()});
       })) {
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(*outcome.error, Errc::mismatch);
    EXPECT_TRUE(contains(outcome.message, "broadcast from rank 1"));
  }
}

}  // namespace
}  // namespace tightwire::testing::session_sharded
