// A Session on devices that is staged through pinned memory makes what one on hosts makes, and stages frames alone.
#include <algorithm>

#include "device_steps.hpp"

namespace tightwire::testing::cuda_staged_same_as_host_test {
namespace {

TEST_F(CudaSession, StagedAsOnHostsUnderEverySchedule) {
  const Steps steps = several_buckets();
  for (const int ranks : {1, 2, 4}) {
    if (ranks > most_ranks()) break;
    const auto expected = steps.run(ranks);
    for (std::size_t schedule = 0; schedule < schedules().size(); ++schedule) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks " + schedules()[schedule]);
      use_schedule(schedule);
      ASSERT_TRUE(same_results(run_on_devices(steps, ranks, reduce_at_once, by_staging), expected));
    }
  }
}

TEST_F(CudaSession, StagesEncodedFramesAndNoGradients) {
  use_schedule(0);
  const Model model = {{"a", {40, 300}, ElementType::f32, Int8{}}, {"b", {7000}, ElementType::bf16, Int4{}}};
  const int ranks = std::min(3, most_ranks());
  run_all_devices(
      ranks,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        SessionOptions options;
        options.plan.algorithm = Algorithm::two_shot;
        const auto session = sealed_device_session(transport, model, options);
        EXPECT_EQ(session->transport(), "staged through pinned host memory over in-process");
        DeviceGradients gradients(model);
        const TestStream stream;
        gradients.upload(Gradients(model), stream);
        const std::uint64_t before = session->staged_bytes();
        session->all_reduce(gradients.pointers(), stream);
        session->commit();
        session->synchronize();
        const Statistics& total = session->total();
        EXPECT_EQ(session->staged_bytes() - before, total.sent_bytes + total.received_bytes);
        EXPECT_LT(total.sent_bytes, total.gradient_bytes / 2);
      },
      by_staging);
}

}  // namespace
}  // namespace tightwire::testing::cuda_staged_same_as_host_test
