// Staged between processes over UCX: the bytes are those of Sessions on hosts.
#include <gtest/gtest.h>

#include <tightwire/core_session.hpp>

#include "device_steps.hpp"
#include "emulated.hpp"
#include "multi/ucx_support.hpp"

namespace tightwire::testing::cuda_staged_ucx_test {
namespace {

TEST(CudaStagedUcx, BetweenProcessesAsOnHosts) {
  Steps steps;
  steps.options.bucket_bytes = 6000;
  steps.options.plan.one_shot_bytes = 900;
  const auto expected = steps.run(2);
  ASSERT_TRUE(all_equal(expected));
  for (const Network& network : networks()) {
    const auto results = run_ranks(2, [&](const Rendezvous& rendezvous) {
      cuda_emulation::use(cuda_emulation::kSchedules[0]);
      must(cudaSetDevice(0));
      const auto session =
          sealed_device_session(cuda::staged(ucx::open(rendezvous, network.options)), steps.model, steps.options);
      require(session->transport().rfind("staged through pinned host memory over ucx", 0) == 0, session->transport());
      Gradients gradients(steps.model);
      DeviceGradients on_device(steps.model);
      const TestStream stream;
      std::vector<std::byte> bytes;
      for (int step = 0; step < steps.steps; ++step) {
        gradients.fill_wide(Steps::seed(rendezvous.rank, step), steps.exponents);
        on_device.upload(gradients, stream);
        session->all_reduce(on_device.pointers(), stream);
        session->commit();
        on_device.download(gradients, stream);
        const std::vector<std::byte> now = gradients.bytes();
        bytes.insert(bytes.end(), now.begin(), now.end());
      }
      session->synchronize();
      require(bytes == expected[0], "the bytes are those of hosts");
      return 0;
    });
    EXPECT_EQ(complaints(results), "") << network.name;
  }
}

}  // namespace
}  // namespace tightwire::testing::cuda_staged_ucx_test
