// reduce_scatter, all_gather and broadcast on devices: bytes and residuals are those of a Session on hosts.
#include <algorithm>
#include <limits>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "device_steps.hpp"

namespace tightwire::testing::cuda_sharded_test {
namespace {

constexpr int kSteps = 2;

struct Sharded {
  Operation operation;
  const char* codec;
  std::int64_t shard;
  ElementType type;
  int root;
};
std::vector<Sharded> buffers(int ranks) {
  std::vector<Sharded> all;
  for (const Operation operation : {Operation::reduce_scatter, Operation::all_gather, Operation::broadcast})
    for (const char* codec : {"exact", "int8", "int4:block=32,round=stochastic", "hadamard:64+int4"}) {
      const std::int64_t shard = all.size() % 5 == 3 ? 1 : static_cast<std::int64_t>(300 + 77 * all.size());
      all.push_back({operation, codec, shard, all.size() % 2 == 0 ? ElementType::f32 : ElementType::bf16, ranks - 1});
    }
  all.push_back({Operation::reduce_scatter, "int8", 0, ElementType::f32, 0});
  all.push_back({Operation::all_reduce, "int8", 700, ElementType::f32, 0});
  return all;
}
SessionOptions options_for(const std::vector<Sharded>& all) {
  SessionOptions options;
  options.policy.exact_by_default = {};
  options.seed = 9;
  for (std::size_t i = 0; i < all.size(); ++i)
    options.policy.rules.push_back({.name = "b" + std::to_string(i), .codec = parse_codec(all[i].codec)});
  return options;
}
Model model_of(const std::vector<Sharded>& all, int ranks) {
  Model model;
  for (std::size_t i = 0; i < all.size(); ++i)
    model.push_back({"b" + std::to_string(i), {ranks, all[i].shard}, all[i].type, parse_codec(all[i].codec)});
  return model;
}
template <class S>
void add_all(S& session, const std::vector<Sharded>& all, int ranks) {
  for (std::size_t i = 0; i < all.size(); ++i)
    session.add("b" + std::to_string(i), {ranks, all[i].shard}, all[i].type, all[i].operation, all[i].root);
  session.seal();
}

/// Buffers after every step, the residuals at the end, and what was counted.
struct Story {
  std::vector<std::byte> bytes;
  std::vector<std::vector<float>> residuals;
  std::uint64_t sent = 0, received = 0, nonfinite = 0;
};
void fill(Gradients& gradients, int rank, int step) {
  gradients.fill_wide(Steps::seed(rank, step), 6);
  if (step == 1 && rank == 0) {
    gradients.set(1, 5, std::numeric_limits<float>::infinity());
    gradients.set(5, 5, std::numeric_limits<float>::quiet_NaN());
  }
}
template <class S>
void finish(S& session, Story& story) {
  for (ParameterId id = 0; id < session.parameters().size(); ++id) {
    const auto residual = session.sender_residual(id);
    story.residuals.emplace_back(residual.begin(), residual.end());
  }
  story.sent = session.total().sent_bytes;
  story.received = session.total().received_bytes;
  story.nonfinite = session.total().nonfinite;
}

Story on_host(const std::shared_ptr<Transport>& transport) {
  const int ranks = transport->size();
  const std::vector<Sharded> all = buffers(ranks);
  const Model model = model_of(all, ranks);
  SessionOptions options = options_for(all);
  options.plan.share_elements = 1 << 20;  // a single chunk, as on devices
  Session session(transport, options);
  add_all(session, all, ranks);
  Gradients gradients(model);
  Story story;
  for (int step = 0; step < kSteps; ++step) {
    fill(gradients, transport->rank(), step);
    session.all_reduce(gradients.pointers());
    session.commit();
    const auto bytes = gradients.bytes();
    story.bytes.insert(story.bytes.end(), bytes.begin(), bytes.end());
  }
  finish(session, story);
  return story;
}
Story on_device(const std::shared_ptr<cuda::Transport>& transport) {
  const int ranks = transport->size();
  const std::vector<Sharded> all = buffers(ranks);
  const Model model = model_of(all, ranks);
  cuda::Session session(transport, options_for(all));
  add_all(session, all, ranks);
  Gradients gradients(model);
  DeviceGradients in_memory(model);
  const TestStream stream;
  Story story;
  for (int step = 0; step < kSteps; ++step) {
    fill(gradients, transport->rank(), step);
    in_memory.upload(gradients, stream);
    if (step == 0)
      for (ParameterId id = 0; id < model.size(); ++id) session.run(id, in_memory.pointers()[id], stream);
    else
      session.all_reduce(in_memory.pointers(), stream);
    session.commit();
    in_memory.download(gradients, stream);
    EXPECT_TRUE(gradients.guards_intact());
    const auto bytes = gradients.bytes();
    story.bytes.insert(story.bytes.end(), bytes.begin(), bytes.end());
  }
  session.synchronize();
  finish(session, story);
  return story;
}

TEST_F(CudaSession, OtherOperationsAsOnHosts) {
  for (const int ranks : {1, 2, 4}) {
    if (ranks > most_ranks()) break;
    std::vector<Story> hosts(static_cast<std::size_t>(ranks)), devices(hosts);
    run_all(ranks,
            [&](const auto& transport) { hosts[static_cast<std::size_t>(transport->rank())] = on_host(transport); });
    for (const Join& join : {Join(by_nccl), Join(by_staging)}) {
      use_schedule(ranks == 2 ? 2 : 0);
      run_all_devices(
          ranks,
          [&](const auto& transport) { devices[static_cast<std::size_t>(transport->rank())] = on_device(transport); },
          join);
      for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, rank " + std::to_string(rank));
        EXPECT_TRUE(devices[rank].bytes == hosts[rank].bytes);
        EXPECT_EQ(devices[rank].residuals, hosts[rank].residuals);
        EXPECT_EQ(devices[rank].sent, hosts[rank].sent);
        EXPECT_EQ(devices[rank].received, hosts[rank].received);
        EXPECT_EQ(devices[rank].nonfinite, hosts[rank].nonfinite);
        EXPECT_NE(hosts[rank].nonfinite, 0u);
      }
    }
  }
}

TEST_F(CudaSession, OtherOperationsRefuseWhatHostsRefuse) {
  run_all_devices(std::min(2, most_ranks()), [](const std::shared_ptr<cuda::Transport>& transport) {
    if (transport->size() < 2) return;
    cuda::Session session(transport, {});
    session.add("w", {3}, ElementType::f32, Operation::all_gather);
    EXPECT_ERROR(session.seal(), Errc::invalid_argument, "3 elements are no multiple of 2 ranks");
  });
}

}  // namespace
}  // namespace tightwire::testing::cuda_sharded_test
