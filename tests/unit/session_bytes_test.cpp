// What goes over the wire is what the plan says, and the statistics say the same.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/simulation.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_bytes {
namespace {

constexpr std::size_t kHeader = 64;

std::size_t rounded_up(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

/// The wire format by hand: parameters of blocks, then codes, each rounded up to 16 bytes.
std::size_t encoded_bytes(std::size_t count, std::size_t bits, std::size_t block, std::size_t param_bytes) {
  return rounded_up((count + block - 1) / block * param_bytes) + rounded_up((count * bits + 7) / 8);
}

struct Counted {
  double planned_messages = 0;  ///< sent, as `tightwire plan` tells
  std::uint64_t planned = 0, sent = 0, received = 0, counted_sent = 0, counted_received = 0, messages = 0;
};

/// One step on every rank over counting transports.
std::vector<Counted> count(const Model& model, int ranks, const SessionOptions& options) {
  Transports transports;
  std::vector<std::shared_ptr<CountingTransport>> counters;
  for (auto& inner : local::make(ranks)) {
    counters.push_back(std::make_shared<CountingTransport>(std::move(inner)));
    transports.push_back(counters.back());
  }
  std::vector<Counted> counts(static_cast<std::size_t>(ranks));
  run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    const CountingTransport& counter = *counters[rank];
    const auto session = sealed_session(transport, model, options);
    Counted& mine = counts[rank];
    for (BucketId id = 0; id < session->buckets(); ++id)
      mine.planned += session->bucket_plan(id).wire_bytes(transport->rank());
    for (const BucketLoad& load : simulate(session->options(), session->parameters(), ranks, 1, transport->rank()))
      mine.planned_messages += sent_by(load).messages;
    const std::uint64_t sent = counter.sent_bytes(), received = counter.received_bytes(), messages = counter.messages();
    Gradients gradients(model);
    gradients.fill_bell(rank);
    session->all_reduce(gradients.pointers());
    session->commit();
    mine.sent = session->last_step().sent_bytes;
    mine.received = session->last_step().received_bytes;
    mine.counted_sent = counter.sent_bytes() - sent;
    mine.counted_received = counter.received_bytes() - received;
    mine.messages = counter.messages() - messages;

    std::uint64_t gradient_bytes = 0, buckets_sent = 0;
    for (const Tensor& tensor : model) gradient_bytes += tensor.count() * element_bytes(tensor.type);
    for (BucketId id = 0; id < session->buckets(); ++id) buckets_sent += session->bucket_statistics(id).sent_bytes;
    EXPECT_EQ(session->last_step().gradient_bytes, gradient_bytes);
    EXPECT_EQ(buckets_sent, mine.sent);
    EXPECT_EQ(session->total().sent_bytes, mine.sent);
    EXPECT_EQ(session->step_statistics().sent_bytes, 0u) << "a new step begins at nothing";
  });
  return counts;
}

TEST(Bytes, PlanStatisticsAndTransportAgree) {
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot, Algorithm::tree, Algorithm::automatic})
    for (const std::size_t share : {16u, 300u, 65536u})
      for (const int ranks : {1, 2, 3, 4, 7}) {
        SessionOptions options;
        options.plan = {.algorithm = algorithm, .share_elements = share};
        options.bucket_bytes = 9000;
        std::uint64_t all_sent = 0, all_received = 0, messages = 0;
        double planned_messages = 0;
        for (const Counted& rank : count(mixed_model(), ranks, options)) {
          EXPECT_EQ(rank.sent, rank.planned);
          EXPECT_EQ(rank.received, rank.planned);
          EXPECT_EQ(rank.counted_sent, rank.planned);
          EXPECT_EQ(rank.counted_received, rank.planned);
          EXPECT_EQ(rank.planned == 0, ranks == 1);
          all_sent += rank.sent;
          all_received += rank.received;
          messages += rank.messages;  // sends and receives
          planned_messages += rank.planned_messages;
        }
        EXPECT_EQ(static_cast<double>(messages), 2 * planned_messages);
        EXPECT_EQ(all_sent, all_received);
      }
}

TEST(Bytes, FormulaByHand) {
  // 4 ranks, 2^18 elements in chunks of 4 x 2^14: every share is a whole number of blocks.
  struct Case {
    Codec codec;
    std::size_t bits, block, param_bytes;
    double ratio;  ///< to fp32
  };
  for (const Case& c : {Case{Codec{}, 32, 256, 0, 1.0}, Case{Int8{}, 8, 256, 2, 3.969}, Case{Int4{}, 4, 64, 2, 7.53},
                        Case{Bf16{}, 16, 256, 0, 2.0}, Case{Int8{.block = 64}, 8, 64, 2, 3.879}}) {
    const Model model = {{"w", {1 << 18}, ElementType::f32, c.codec}};
    SessionOptions options;
    options.plan = {.algorithm = Algorithm::two_shot, .share_elements = 1 << 14};
    const std::size_t frame = kHeader + encoded_bytes(1 << 14, c.bits, c.block, c.param_bytes);
    const std::vector<Counted> counts = count(model, 4, options);
    for (const Counted& rank : counts) EXPECT_EQ(rank.sent, 4u * (3 + 3) * frame) << c.codec.spec();
    const double fp32 = 2.0 * 3 / 4 * (1 << 18) * 4;
    EXPECT_NEAR(fp32 / static_cast<double>(counts[0].sent), c.ratio, c.ratio * 0.01) << c.codec.spec();

    options.plan.algorithm = Algorithm::one_shot;
    const std::size_t whole = kHeader + encoded_bytes(1 << 14, c.bits, c.block, c.param_bytes);
    for (const Counted& rank : count(model, 4, options)) EXPECT_EQ(rank.sent, 16u * 3 * whole) << c.codec.spec();
  }
}

TEST(Bytes, EmptySharesSendNothing) {
  // 100 elements in blocks of 64 on 5 ranks: two shares hold all of it. Their owners send two results each to 4 peers.
  const Model model = {{"w", {100}, ElementType::f32, Int8{.block = 64}}, {"none", {0}, ElementType::f32, Int8{}}};
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  const std::vector<Counted> counts = count(model, 5, options);
  std::size_t owners = 0;
  for (const Counted& rank : counts) {
    owners += rank.messages > 2 * (2 + 2) ? 1 : 0;
    EXPECT_EQ(rank.sent, rank.counted_sent);
  }
  EXPECT_EQ(owners, 2u);
}

TEST(Bytes, SmallParametersAreOneMessageToEachPeer) {
  Model model;
  for (int i = 0; i < 40; ++i)
    model.push_back({"p" + std::to_string(i),
                     {1 + i},
                     i % 3 == 0 ? ElementType::bf16 : ElementType::f32,
                     i % 2 == 0 ? Codec{} : Codec{Int8{}}});
  for (const std::size_t ranks : {2u, 5u}) {
    // A send and a receive.
    for (const Counted& rank : count(model, static_cast<int>(ranks), {})) EXPECT_EQ(rank.messages, 2 * (ranks - 1));
    SessionOptions apart;
    apart.bucket_bytes = 1;
    for (const Counted& rank : count(model, static_cast<int>(ranks), apart))
      EXPECT_EQ(rank.messages, 40 * 2 * (ranks - 1));
  }
}

TEST(Bytes, NothingForNoElements) {
  const Model model = {{"none", {0}, ElementType::f32, Int8{}}, {"neither", {3, 0}, ElementType::bf16, Int4{}}};
  for (const Counted& rank : count(model, 3, {})) {
    EXPECT_EQ(rank.sent, 0u);
    EXPECT_EQ(rank.messages, 0u);
  }
}

TEST(Bytes, StatisticsAddUpOverStepsAndForgetNothingRolledBack) {
  const Model model = {{"w", {5000}, ElementType::f32, Int8{}}};
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    const std::uint64_t planned = session->bucket_plan(0).wire_bytes(transport->rank());
    for (int step = 0; step < 5; ++step) {
      gradients.fill_bell(static_cast<std::uint64_t>(step));
      session->all_reduce(gradients.pointers());
      if (step == 2) session->all_reduce(gradients.pointers());
      if (step == 3)
        session->rollback();
      else
        session->commit();
      EXPECT_EQ(session->last_step().sent_bytes, (step == 2 ? 2 : 1) * planned);
      EXPECT_EQ(session->last_step().calls, step == 2 ? 2u : 1u);
    }
    const StepStatistics& total = session->total();
    EXPECT_EQ(total.sent_bytes, 6 * planned);
    EXPECT_EQ(total.calls, 6u);
    EXPECT_GT(total.encode_seconds, 0.0);
    EXPECT_GT(total.combine_seconds, 0.0);
    EXPECT_GT(total.decode_seconds, 0.0);
    EXPECT_GE(total.wire_seconds, 0.0);
    EXPECT_GT(total.blocked_seconds, 0.0);
    EXPECT_GE(total.step_seconds, total.blocked_seconds);
    EXPECT_GT(total.communication_share(), 0.0);
    EXPECT_LE(total.communication_share(), 1.0);
    EXPECT_EQ(total.nonfinite, 0u);
  });
}

}  // namespace
}  // namespace tightwire::testing::session_bytes
