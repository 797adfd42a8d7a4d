#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "device_ranks.hpp"
#include "unit/support/steps.hpp"

namespace tightwire::testing {

/// The bytes of a state but for the name of its run, which every run has its own of, and the check sum.
inline std::vector<std::byte> without_run(std::vector<std::byte> state) {
  state.resize(state.size() - 8);
  state.erase(state.begin() + 44, state.begin() + 52);
  return state;
}

/// How a step is done on a device; by default all at once on the stream that the gradients come from.
using DeviceReduce = std::function<void(cuda::Session&, DeviceGradients&, cudaStream_t stream)>;
inline void reduce_at_once(cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
  session.all_reduce(gradients.pointers(), stream);
}

/// Buckets that go in one round and in two.
inline Steps several_buckets(int count = Steps().steps) {
  Steps steps;
  steps.options.bucket_bytes = 6000;
  steps.options.plan.one_shot_bytes = 900;
  steps.steps = count;
  return steps;
}

/// A step of gradients that are zero.
inline void reduce_once(cuda::Session& session, const Model& model) {
  DeviceGradients gradients(model);
  const TestStream stream;
  gradients.upload(Gradients(model), stream);
  session.all_reduce(gradients.pointers(), stream);
  session.commit();
  session.synchronize();
}

inline double seconds_of(const std::function<void()>& call) {
  const auto began = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// What `Steps::run` makes, by Sessions on devices.
inline std::vector<std::vector<std::byte>> run_on_devices(const Steps& steps, int ranks,
                                                          const DeviceReduce& reduce = reduce_at_once,
                                                          const Join& join = by_nccl) {
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(ranks));
  SessionOptions options = steps.options;
  options.plan.share_elements = 0;
  run_all_devices(
      ranks,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        const auto session = sealed_device_session(transport, steps.model, options);
        Gradients gradients(steps.model);
        DeviceGradients on_device(steps.model);
        const TestStream stream;
        for (int step = 0; step < steps.steps; ++step) {
          gradients.fill_wide(Steps::seed(transport->rank(), step), steps.exponents);
          on_device.upload(gradients, stream);
          reduce(*session, on_device, stream);
          EXPECT_TRUE(session->commit());
          on_device.download(gradients, stream);
          EXPECT_TRUE(gradients.guards_intact());
          const std::vector<std::byte> bytes = gradients.bytes();
          auto& result = results[static_cast<std::size_t>(transport->rank())];
          result.insert(result.end(), bytes.begin(), bytes.end());
        }
        session->synchronize();
      },
      join);
  return results;
}

/// What `run_on_devices` makes, by two Sessions beside each other. Every other rank begins with the second one.
inline std::array<std::vector<std::vector<std::byte>>, 2> run_two_at_once(const Steps& steps, int ranks,
                                                                          const DeviceReduce& reduce = reduce_at_once,
                                                                          const Join& join = by_nccl) {
  std::array<std::vector<std::vector<std::byte>>, 2> results;
  for (auto& each : results) each.resize(static_cast<std::size_t>(ranks));
  const auto body = [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    std::unique_ptr<cuda::Session> sessions[2];
    for (auto& session : sessions) session = sealed_device_session(transport, steps.model, steps.options);
    Gradients gradients(steps.model);
    DeviceGradients on_device[2] = {DeviceGradients(steps.model), DeviceGradients(steps.model)};
    const TestStream streams[2];
    for (int step = 0; step < steps.steps; ++step) {
      gradients.fill_wide(Steps::seed(transport->rank(), step), steps.exponents);
      for (const std::size_t i : {rank % 2, 1 - rank % 2}) {
        on_device[i].upload(gradients, streams[i]);
        reduce(*sessions[i], on_device[i], streams[i]);
      }
      for (const std::size_t i : {0u, 1u}) {
        EXPECT_TRUE(sessions[i]->commit());
        Gradients out(steps.model);
        on_device[i].download(out, streams[i]);
        const std::vector<std::byte> bytes = out.bytes();
        results[i][rank].insert(results[i][rank].end(), bytes.begin(), bytes.end());
      }
    }
  };
  run_all_devices(ranks, body, join);
  return results;
}

inline ::testing::AssertionResult same_results(const std::vector<std::vector<std::byte>>& device,
                                               const std::vector<std::vector<std::byte>>& host) {
  if (::testing::AssertionResult equal = all_equal(device); !equal) return equal;
  if (device[0] == host[0]) return ::testing::AssertionSuccess();
  std::size_t at = 0;
  while (at < device[0].size() && device[0][at] == host[0][at]) ++at;
  return ::testing::AssertionFailure() << "differs from the host at byte " << at << " of " << host[0].size();
}

}  // namespace tightwire::testing
