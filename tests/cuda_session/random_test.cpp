// Elements that are drawn at random, on devices: buffers, residuals and counts are those of a Session on hosts.
#include <algorithm>
#include <limits>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "device_steps.hpp"

namespace tightwire::testing {
namespace {

constexpr int kSteps = 4;

Model drawn_model(bool feedback) {
  const std::string more = feedback ? "" : ",without-feedback";
  Model model;
  const auto add = [&](std::int64_t count, ElementType type, const std::string& codec) {
    model.push_back({std::to_string(model.size()) + " " + codec, {count}, type, parse_codec(codec)});
  };
  add(1003, ElementType::f32, "randomk:ratio=0.05" + more);
  add(4099, ElementType::bf16, "randomk:ratio=0.1" + more + "+int8");
  add(700, ElementType::f32, "int4");
  add(900, ElementType::f16, "randomk:ratio=0.2" + more + "+hadamard:64+int4");
  add(0, ElementType::f32, "randomk:ratio=0.5" + more);
  add(7, ElementType::f32, "randomk:ratio=1" + more + "+bf16");
  return model;
}

struct Story {
  std::vector<std::byte> bytes;
  std::vector<std::vector<float>> residuals;
  std::vector<bool> kept;
  std::uint64_t sent = 0, received = 0, gradient = 0, nonfinite = 0, calls = 0;
};
/// Steps with numbers that are not finite in the second, which is rolled back; and at the end such that the mean of
/// what was kept is more than fp16 can hold.
void fill(Gradients& gradients, int rank, int step) {
  gradients.fill_wide(Steps::seed(rank, step), 6);
  if (step == 1)
    for (std::size_t i = 0; i < 900; i += rank == 0 ? 1 : 7)
      gradients.set(3, i, std::numeric_limits<float>::infinity());
  if (step == 2 && rank == 0) gradients.set(0, 17, std::numeric_limits<float>::quiet_NaN());
  if (step >= 2)
    for (std::size_t i = 0; i < 900; ++i) gradients.set(3, i, 65'000.0f);
}
template <class S, class Reduce>
Story tell(S& session, const Model& model, const Reduce& reduce) {
  Gradients gradients(model);
  Story story;
  for (int step = 0; step < kSteps; ++step) {
    fill(gradients, session.rank(), step);
    reduce(gradients);
    EXPECT_TRUE(gradients.guards_intact());
    if (step == 1 && session.residual_bytes() != 0)
      session.rollback();
    else
      story.kept.push_back(session.commit());
    const auto bytes = gradients.bytes();
    story.bytes.insert(story.bytes.end(), bytes.begin(), bytes.end());
  }
  for (ParameterId id = 0; id < model.size(); ++id) {
    const auto residual = session.sender_residual(id);
    story.residuals.emplace_back(residual.begin(), residual.end());
  }
  const auto& total = session.total();
  story.sent = total.sent_bytes;
  story.received = total.received_bytes;
  story.gradient = total.gradient_bytes;
  story.nonfinite = total.nonfinite;
  story.calls = total.calls;
  return story;
}

void expect_same(const Story& device, const Story& host) {
  EXPECT_TRUE(device.bytes == host.bytes);
  EXPECT_EQ(device.residuals, host.residuals);
  EXPECT_EQ(device.kept, host.kept);
  EXPECT_EQ(device.sent, host.sent);
  EXPECT_EQ(device.received, host.received);
  EXPECT_EQ(device.gradient, host.gradient);
  EXPECT_EQ(device.nonfinite, host.nonfinite);
  EXPECT_NE(host.nonfinite, 0u);
  EXPECT_EQ(device.calls, host.calls);
}

/// What is asked for in one comparison.
struct Case {
  int ranks;
  Algorithm algorithm;
  bool feedback, rollback;
  std::size_t schedule;
};

TEST_F(CudaSession, DrawnElementsAsOnHosts) {
  for (const Case& it : {Case{1, Algorithm::two_shot, true, true, 0}, Case{2, Algorithm::two_shot, true, true, 2},
                         Case{3, Algorithm::two_shot, true, true, 1}, Case{2, Algorithm::one_shot, true, true, 3},
                         Case{2, Algorithm::two_shot, false, true, 0}}) {
    if (it.ranks > most_ranks()) break;
    SCOPED_TRACE(std::to_string(it.ranks) + " ranks, " + to_string(it.algorithm));
    const Model model = drawn_model(it.feedback);
    SessionOptions options;
    options.plan.algorithm = it.algorithm;
    options.error_feedback = it.feedback;
    options.rollback = it.rollback;
    options.seed = 11;
    std::vector<Story> hosts(static_cast<std::size_t>(it.ranks)), devices(hosts);
    SessionOptions on_hosts = options;
    on_hosts.plan.share_elements = 1 << 20;  // a single chunk, as on devices
    run_all(it.ranks, [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, on_hosts);
      hosts[static_cast<std::size_t>(transport->rank())] =
          tell(*session, model, [&](Gradients& gradients) { session->all_reduce(gradients.pointers()); });
    });
    use_schedule(it.schedule % schedules().size());
    run_all_devices(it.ranks, [&](const std::shared_ptr<cuda::Transport>& transport) {
      const auto session = sealed_device_session(transport, model, options);
      DeviceGradients on_device(model);
      const TestStream stream;
      devices[static_cast<std::size_t>(transport->rank())] = tell(*session, model, [&](Gradients& gradients) {
        on_device.upload(gradients, stream);
        session->all_reduce(on_device.pointers(), stream);
        on_device.download(gradients, stream);
        session->synchronize();
      });
    });
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      expect_same(devices[rank], hosts[rank]);
    }
  }
}

}  // namespace
}  // namespace tightwire::testing
