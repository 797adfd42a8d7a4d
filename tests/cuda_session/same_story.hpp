#pragma once
// Whole trainings on devices and on hosts that must not differ in anything that can be read.
#include <cstring>

#include "device_steps.hpp"

namespace tightwire::testing {

/// What can be read of a rank's steps.
struct Story {
  std::vector<std::byte> bytes;                       ///< of all buffers after each step
  std::vector<std::vector<std::uint32_t>> residuals;  ///< bits, by parameter, in the end
  std::vector<bool> kept;                             ///< by step that was not rolled back
  std::uint64_t sent = 0, received = 0, gradient = 0, nonfinite = 0, calls = 0;
};
/// Gradients of a rank's step.
using Fill = std::function<void(Gradients&, int rank, int step)>;

/// What is asked for in one comparison. The second step is rolled back, where that can be.
struct Case {
  int ranks;
  Algorithm algorithm = Algorithm::two_shot;
  bool feedback = true, rollback = true;
  std::size_t schedule = 0;
  int steps = 4;
  std::size_t bucket_bytes = SessionOptions().bucket_bytes;
  MomentumCorrection momentum = {};
};

template <class S, class Reduce>
Story tell(S& session, const Model& model, const Case& asked, const Fill& fill, const Reduce& reduce) {
  Gradients gradients(model);
  Story story;
  for (int step = 0; step < asked.steps; ++step) {
    fill(gradients, session.rank(), step);
    reduce(gradients);
    EXPECT_TRUE(gradients.guards_intact());
    if (step == 1 && asked.rollback && session.residual_bytes() != 0)
      session.rollback();
    else
      story.kept.push_back(session.commit());
    const auto bytes = gradients.bytes();
    story.bytes.insert(story.bytes.end(), bytes.begin(), bytes.end());
  }
  for (ParameterId id = 0; id < model.size(); ++id) {
    const auto residual = session.sender_residual(id);
    auto& bits = story.residuals.emplace_back(residual.size());
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = tightwire::detail::to_bits(residual[i]);
  }
  const auto& total = session.total();
  story.sent = total.sent_bytes;
  story.received = total.received_bytes;
  story.gradient = total.gradient_bytes;
  story.nonfinite = total.nonfinite;
  story.calls = total.calls;
  return story;
}

inline void expect_same(const Story& device, const Story& host) {
  std::size_t at = 0;
  while (at < host.bytes.size() && at < device.bytes.size() && device.bytes[at] == host.bytes[at]) ++at;
  EXPECT_TRUE(device.bytes == host.bytes) << "from byte " << at << " of " << host.bytes.size();
  ASSERT_EQ(device.residuals.size(), host.residuals.size());
  for (std::size_t p = 0; p < host.residuals.size(); ++p)
    EXPECT_TRUE(device.residuals[p] == host.residuals[p]) << "residual of parameter " << p;
  EXPECT_EQ(device.kept, host.kept);
  EXPECT_EQ(device.sent, host.sent);
  EXPECT_EQ(device.received, host.received);
  EXPECT_EQ(device.gradient, host.gradient);
  EXPECT_EQ(device.nonfinite, host.nonfinite);
  EXPECT_EQ(device.calls, host.calls);
}

/// Returns the non-finite elements that were met.
inline std::uint64_t expect_same_as_on_hosts(const Case& asked, const Model& model, const Fill& fill,
                                             const Join& join = by_nccl) {
  SCOPED_TRACE(std::to_string(asked.ranks) + " ranks, " + to_string(asked.algorithm));
  SessionOptions options;
  options.plan.algorithm = asked.algorithm;
  options.error_feedback = asked.feedback;
  options.rollback = asked.rollback;
  options.bucket_bytes = asked.bucket_bytes;
  options.momentum = asked.momentum;
  options.seed = 11;
  std::vector<Story> hosts(static_cast<std::size_t>(asked.ranks)), devices(hosts);
  SessionOptions on_hosts = options;
  on_hosts.plan.share_elements = 1 << 20;  // a single chunk, as on devices
  run_all(asked.ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, on_hosts);
    hosts[static_cast<std::size_t>(transport->rank())] =
        tell(*session, model, asked, fill, [&](Gradients& gradients) { session->all_reduce(gradients.pointers()); });
  });
  use_schedule(asked.schedule % schedules().size());
  run_all_devices(
      asked.ranks,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        const auto session = sealed_device_session(transport, model, options);
        DeviceGradients on_device(model);
        const TestStream stream;
        devices[static_cast<std::size_t>(transport->rank())] =
            tell(*session, model, asked, fill, [&](Gradients& gradients) {
              on_device.upload(gradients, stream);
              session->all_reduce(on_device.pointers(), stream);
              on_device.download(gradients, stream);
              session->synchronize();
            });
      },
      join);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    expect_same(devices[rank], hosts[rank]);
  }
  return hosts[0].nonfinite;
}

}  // namespace tightwire::testing
