// Streams of the caller's, buckets in any order, Sessions beside each other; and that a missing wait shows.
#include <algorithm>
#include <atomic>
#include <thread>

#include "device_steps.hpp"
#include "emulated.hpp"

namespace tightwire::testing::cuda_order_test {
namespace {

std::vector<BucketId> order_of(const cuda::Session& session, std::uint64_t seed) {
  FastRandom random(seed + 77 * static_cast<std::uint64_t>(session.rank()) + session.steps());
  std::vector<BucketId> order(session.buckets());
  for (BucketId id = 0; id < order.size(); ++id) order[id] = id;
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}
std::vector<void*> pointers_of(const cuda::Session& session, BucketId id, const DeviceGradients& gradients) {
  std::vector<void*> pointers;
  for (const ParameterId p : session.bucket_parameters(id)) pointers.push_back(gradients.pointers()[p]);
  return pointers;
}
/// What comes on `to` from now on comes after what is on `from`.
void follow(cudaStream_t to, cudaStream_t from) {
  cudaEvent_t event = nullptr;
  must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  must(cudaEventRecord(event, from));
  must(cudaStreamWaitEvent(to, event, 0));
  must(cudaEventDestroy(event));
}

/// Each rank starts buckets in an order of its own, each from a stream of its own, and waits on another.
void in_any_order(cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
  const TestStream producers[2], consumer;
  for (const TestStream& producer : producers) follow(producer, stream);
  std::vector<cuda::Handle> handles;
  for (const BucketId id : order_of(session, 5))
    handles.push_back(session.start(id, pointers_of(session, id, gradients), producers[id % 2]));
  std::reverse(handles.begin(), handles.end());
  for (cuda::Handle& handle : handles) handle.wait(consumer);
  follow(stream, consumer);
}

TEST(CudaSessionOrder, BucketsStartInAnyOrderOnStreamsOfTheirOwn) {
  const Steps steps = several_buckets(3);
  const auto expected = steps.run(4);
  for (std::size_t schedule = 0; schedule < std::size(cuda_emulation::kSchedules); ++schedule) {
    SCOPED_TRACE(schedule);
    use(schedule);
    ASSERT_TRUE(same_results(run_on_devices(steps, 4, in_any_order), expected));
  }
}

/// Nobody tells the Session's streams from which of the caller's the gradients come, or the caller's when they are
/// done.
TEST(CudaSessionOrder, AMissingWaitIsSeen) {
  const Steps steps = several_buckets(3);
  const auto expected = steps.run(2);
  const DeviceReduce without_producer = [](cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
    const TestStream another;
    session.all_reduce(gradients.pointers(), another);
    follow(stream, another);
  };
  const DeviceReduce without_consumer = [](cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
    const TestStream another;
    follow(another, stream);
    session.all_reduce(gradients.pointers(), another);
  };
  // The same way with all waits: what is seen is not of the way.
  const DeviceReduce with_all = [](cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
    const TestStream another;
    follow(another, stream);
    session.all_reduce(gradients.pointers(), another);
    follow(stream, another);
  };
  cuda_emulation::options().check_initialized = false;  // bits are what shows it, and no rank is to end early
  const auto seen = [&](const DeviceReduce& reduce) {
    for (std::size_t schedule = 0; schedule < std::size(cuda_emulation::kSchedules); ++schedule) {
      use(schedule);
      if (!same_results(run_on_devices(steps, 2, reduce), expected)) return true;  // fails where a rank threw
    }
    return false;
  };
  EXPECT_TRUE(seen(without_producer));
  EXPECT_TRUE(seen(without_consumer));
  EXPECT_FALSE(seen(with_all));
  cuda_emulation::options().check_initialized = true;
  cuda_emulation::reset();
}

/// The second step's gradients lie elsewhere and come from a stream that knows nothing of the first step, whose frames
/// and residuals it uses.
TEST(CudaSessionOrder, AStepComesAfterTheOneBeforeWhateverItsStream) {
  constexpr int kRanks = 2;
  Steps steps = several_buckets(3);
  steps.steps = 2;
  const auto expected = steps.run(kRanks);
  for (std::size_t schedule = 0; schedule < std::size(cuda_emulation::kSchedules); ++schedule) {
    SCOPED_TRACE(schedule);
    use(schedule);
    std::vector<std::vector<std::byte>> results(kRanks);
    run_all_devices(kRanks, [&](const std::shared_ptr<cuda::Transport>& transport) {
      const auto session = sealed_device_session(transport, steps.model, steps.options);
      Gradients gradients(steps.model);
      DeviceGradients on_device[2] = {DeviceGradients(steps.model), DeviceGradients(steps.model)};
      const TestStream streams[2];
      for (int step : {0, 1}) {
        gradients.fill_wide(Steps::seed(transport->rank(), step), steps.exponents);
        on_device[step].upload(gradients, streams[step]);
      }
      for (int step : {0, 1}) {
        session->all_reduce(on_device[step].pointers(), streams[step]);
        session->commit();
      }
      for (int step : {1, 0}) on_device[step].download(gradients, streams[step]);
      auto& result = results[static_cast<std::size_t>(transport->rank())];
      for (int step : {0, 1}) {
        on_device[step].download(gradients, streams[step]);
        const std::vector<std::byte> bytes = gradients.bytes();
        result.insert(result.end(), bytes.begin(), bytes.end());
      }
    });
    ASSERT_TRUE(same_results(results, expected));
  }
}

TEST(CudaSessionOrder, TwoSessionsAtOnce) {
  const Steps steps = several_buckets(3);
  const auto expected = steps.run(3);
  for (const std::size_t schedule : {1u, 2u}) {
    use(schedule);
    for (const auto& each : run_two_at_once(steps, 3, in_any_order)) ASSERT_TRUE(same_results(each, expected));
  }
}

/// One rank is steps ahead of the other, which only can be if no call of it waits for the device.
void expect_no_call_waits(bool slowly) {
  use(0);
  const Model model = {{"a", {40, 30}, ElementType::f32, Int8{}}, {"b", {700}, ElementType::bf16, Int4{}}};
  std::atomic<bool> ahead = false;
  struct Release {
    std::atomic<bool>& ahead;
    ~Release() { ahead = true; }
  };
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const Release release{ahead};  // an error is not to leave the other rank waiting
    cuda_emulation::settle_slowly(slowly);
    const auto session = sealed_device_session(transport, model);
    Gradients gradients(model);
    gradients.fill_bell(1);
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(gradients, stream);
    const auto step = [&] {
      session->all_reduce(on_device.pointers(), stream);
      session->commit();
    };
    step();  // the first round takes events
    session->synchronize();
    while (transport->rank() == 1 && !ahead) std::this_thread::yield();
    const cuda_emulation::Calls before = cuda_emulation::calls();
    for (int i = 0; i < 5; ++i) step();
    const cuda_emulation::Calls after = cuda_emulation::calls();
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    if (transport->rank() == 0) {
      EXPECT_EQ(after.waits, before.waits);
      EXPECT_EQ(after.allocations, before.allocations);
      EXPECT_EQ(after.copies, before.copies);
      ahead = true;
    }
    session->synchronize();
  });
}
TEST(CudaSessionOrder, NoCallWaitsAllocatesOrCopiesToTheHost) { expect_no_call_waits(false); }
TEST(CudaSessionOrder, NoCallWaitsForTheDeviceWhereNcclTakesItsTime) { expect_no_call_waits(true); }

}  // namespace
}  // namespace tightwire::testing::cuda_order_test
