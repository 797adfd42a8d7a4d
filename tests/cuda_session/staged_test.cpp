// The staged transport: it waits for nothing in the callers' threads, and what goes wrong with the host's transport
// under it is told in time, and releases the streams.
#include <atomic>
#include <barrier>
#include <thread>

#include <tightwire/agreement.hpp>
#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "cuda_emulation/runtime/stream.hpp"
#include "device_steps.hpp"
#include "emulated.hpp"
#include "unit/support/small_model.hpp"
#include "unit/support/wrapping_transport.hpp"

namespace tightwire::testing::cuda_staged_test {
namespace {

using std::chrono::milliseconds;

/// One rank is steps ahead of the other, which only can be if no call of it waits for the transport.
TEST(CudaStaged, NoCallWaitsOrAllocates) {
  use(0);
  const Model model = {{"a", {40, 30}, ElementType::f32, Int8{}}, {"b", {700}, ElementType::bf16, Int4{}}};
  std::atomic<bool> ahead = false;
  std::atomic<int> ready = 0;
  struct Release {
    std::atomic<bool>& ahead;
    std::atomic<int>& ready;
    ~Release() {
      ahead = true;
      ready = 2;
    }
  };
  const auto body = [&](const std::shared_ptr<cuda::Transport>& transport) {
    const Release release{ahead, ready};  // an error is not to leave the other rank waiting
    const auto session = sealed_device_session(transport, model, two_shot());
    Gradients gradients(model);
    gradients.fill_bell(1);
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(gradients, stream);
    const auto step = [&] {
      session->all_reduce(on_device.pointers(), stream);
      session->commit();
    };
    step();  // takes pinned memory
    session->synchronize();
    ++ready;
    while (ready != 2 || (transport->rank() == 1 && !ahead)) std::this_thread::yield();
    const cuda_emulation::Calls before = cuda_emulation::calls();
    for (int i = 0; i < 5; ++i) step();
    const cuda_emulation::Calls after = cuda_emulation::calls();
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    if (transport->rank() == 0) {
      EXPECT_EQ(after.waits, before.waits);
      EXPECT_EQ(after.allocations, before.allocations);
      EXPECT_EQ(after.copies - before.copies, 5u * 4);  // a send and a receive in each of two rounds
      ahead = true;
    }
    session->synchronize();
  };
  run_all_devices(2, body, by_staging);
}

TEST(CudaStaged, TwoSessionsAtOnceInAnyOrder) {
  Steps steps;
  steps.steps = 2;
  const auto expected = steps.run(3);
  for (const std::size_t schedule : {1u, 2u}) {
    use(schedule);
    for (const auto& each : run_two_at_once(steps, 3, reduce_at_once, by_staging))
      ASSERT_TRUE(same_results(each, expected));
  }
}

/// A step of which the stream's end is waited for, too, and before the Session's.
void reduce_and_wait_for_stream(cuda::Session& session, const Model& model) {
  DeviceGradients gradients(model);
  const TestStream stream;
  gradients.upload(Gradients(model), stream);
  session.all_reduce(gradients.pointers(), stream);
  session.commit();
  stream.synchronize();
  session.synchronize();
}

TEST(CudaStaged, ALostRankReleasesTheStreamsOfTheOthers) {
  use(0);
  const Model model = small_model();
  const auto hosts = local::make(2);
  std::vector<Outcome> outcomes;
  const double seconds = seconds_of([&] {
    outcomes = run_each_device(
        hosts,
        [&](const std::shared_ptr<cuda::Transport>& transport) {
          const auto session = sealed_device_session(transport, model, two_shot());
          if (transport->rank() == 1) {
            std::this_thread::sleep_for(milliseconds(50));
            hosts[1]->abort("the loss is NaN");
            return;
          }
          reduce_and_wait_for_stream(*session, model);
        },
        by_staging);
  });
  EXPECT_LT(seconds, 3);
  EXPECT_EQ(outcomes[0].error, Errc::peer_lost) << outcomes[0].message;
  EXPECT_TRUE(contains(outcomes[0].message, "the loss is NaN"));
}

TEST(CudaStaged, ARoundThatTakesTooLongNamesTheRankItWaitsFor) {
  use(0);
  const Model model = small_model();
  const auto outcomes = run_each_device(
      2,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        const auto session = sealed_device_session(transport, model, two_shot(milliseconds(300)));
        if (transport->rank() == 1) return std::this_thread::sleep_for(milliseconds(800));
        EXPECT_LT(seconds_of([&] { EXPECT_THROW(reduce_and_wait_for_stream(*session, model), Error); }), 2);
        session->synchronize();  // the same error again
      },
      by_staging);
  EXPECT_EQ(outcomes[0].error, Errc::timeout) << outcomes[0].message;
  EXPECT_TRUE(contains(outcomes[0].message, "rank 0: a round that is staged"));
  EXPECT_TRUE(contains(outcomes[0].message, "not done after 300 ms; waiting for rank 1"));
}

TEST(CudaStaged, ASessionThatEndsWithARoundUnderWayEndsInTime) {
  use(0);
  const Model model = small_model();
  const auto outcomes = run_each_device(
      2,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        auto session = sealed_device_session(transport, model, two_shot(milliseconds(300)));
        if (transport->rank() == 1) return std::this_thread::sleep_for(milliseconds(500));
        DeviceGradients gradients(model);
        const TestStream stream;
        gradients.upload(Gradients(model), stream);
        session->all_reduce(gradients.pointers(), stream);
        EXPECT_LT(seconds_of([&] { session.reset(); }), 2);
      },
      by_staging);
  EXPECT_FALSE(outcomes[0].error) << outcomes[0].message;
}

/// Neither its end waits for that, nor is anything freed that the stream comes to later.
TEST(CudaStaged, ASessionEndsWhereAStreamOfTheCallersStandsStill) {
  use(0);
  const Model model = {{"a", {64}, ElementType::f32, Int8{}},
                       {"drawn", {300}, ElementType::f32, parse_codec("randomk:ratio=0.1+int8")}};
  std::atomic<bool> goes_on = false;
  std::barrier together(2);
  run_all_devices(
      2,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        auto session = sealed_device_session(transport, model, two_shot(milliseconds(300)));
        DeviceGradients gradients(model);
        const TestStream stream;
        gradients.upload(Gradients(model), stream);
        cuda_emulation::enqueue(stream, "what stands still", [&] { return goes_on.load(); });
        session->all_reduce(gradients.pointers(), stream);
        together.arrive_and_wait();
        EXPECT_LT(seconds_of([&] { session.reset(); }), 2);
        together.arrive_and_wait();
        goes_on = true;
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      },
      by_staging);
  EXPECT_EQ(cuda_emulation::last_report(), "");
}

TEST(CudaStaged, ARankThatEndsAStepOtherwiseIsNamed) {
  use(0);
  const Model model = small_model();
  const auto outcomes = run_each_device(
      2,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        const auto session = sealed_device_session(transport, model, two_shot());
        DeviceGradients on_device(model);
        const TestStream stream;
        on_device.upload(Gradients(model), stream);
        session->all_reduce(on_device.pointers(), stream);
        transport->rank() == 0 ? static_cast<void>(session->commit()) : session->rollback();
        session->all_reduce(on_device.pointers(), stream);
        session->synchronize();
      },
      by_staging);
  // Whoever hears first tells the other that it gave up, and why.
  bool named = false;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(outcomes[rank].error == Errc::mismatch || outcomes[rank].error == Errc::peer_lost);
    EXPECT_TRUE(contains(outcomes[rank].message, "has ended 1 steps"));
    named = named || outcomes[rank].error == Errc::mismatch;
  }
  EXPECT_TRUE(named);
}

TEST(CudaStaged, RanksThatDifferAreNamedAtTheSeal) {
  const auto outcomes = run_each_device(
      3,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        Model model = small_model();
        if (transport->rank() == 1) model[1].codec = Int8{};
        sealed_device_session(transport, model, two_shot());
      },
      by_staging);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, Errc::mismatch) << outcome.message;
    EXPECT_TRUE(contains(outcome.message, "rank 1 has"));
  }
}

/// Of the payload, which no header tells about.
TEST(CudaStaged, DamageOnTheWireIsFound) {
  use(0);
  const Model model = small_model();
  const auto hosts = faulty(2, [](int rank) {
    return [rank](const Message& message) {
      Fault fault;
      if (rank == 1 && message.bytes > 600)
        fault.change = [](std::span<std::byte> bytes) { bytes[300] ^= std::byte{1}; };
      return fault;
    };
  });
  const auto outcomes = run_each_device(
      hosts,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        reduce_and_wait_for_stream(*sealed_device_session(transport, model, two_shot()), model);
      },
      by_staging);
  EXPECT_EQ(outcomes[0].error, Errc::corrupt) << outcomes[0].message;
  EXPECT_TRUE(contains(outcomes[0].message, "rank 0: a message from rank 1: checksum does not match"));
}

TEST(CudaStaged, ARankWithoutADeviceIsNamedOnTheOthers) {
  const auto outcomes = run_each(local::make(2), [&](const std::shared_ptr<Transport>& host) {
    must(cudaSetDevice(0));
    if (host->rank() == 0) cuda::staged(host);
    tightwire::detail::exchange_greetings(*host, host->next_channel(), {1, 0}, std::chrono::seconds(5), "a test");
  });
  EXPECT_EQ(outcomes[0].error, Errc::unsupported) << outcomes[0].message;
  EXPECT_TRUE(contains(outcomes[0].message, "rank 1 cannot have one"));
  EXPECT_ERROR(cuda::staged(nullptr), Errc::invalid_argument, "null");
}

TEST(CudaStaged, AHostOfOneThreadIsRefused) {
  struct OneThread final : WrappingTransport {
    using WrappingTransport::WrappingTransport;
    bool any_thread() const noexcept override { return false; }
  };
  must(cudaSetDevice(0));
  EXPECT_ERROR(cuda::staged(std::make_shared<OneThread>(local::make(1)[0])), Errc::unsupported,
               "a staged transport works in the background");
}

}  // namespace
}  // namespace tightwire::testing::cuda_staged_test
