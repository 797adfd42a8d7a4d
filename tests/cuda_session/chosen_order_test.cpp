// Buckets of chosen elements, and of factors, among others: their turns, who waits for whom, disagreement, lost ranks,
// states.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <future>
#include <limits>
#include <map>
#include <string>
#include <thread>

#include <tightwire/codec.hpp>

#include "cuda_emulation/runtime/stream.hpp"
#include "device_steps.hpp"
#include "emulated.hpp"
#include "unit/support/small_model.hpp"

namespace tightwire::testing::cuda_chosen_order_test {
namespace {

/// Buckets: chosen elements before, and after, what is sent in blocks, and factors.
Model four() {
  return {{"a", {3000}, ElementType::f32, parse_codec("topk:ratio=0.05")},
          {"b", {900}, ElementType::bf16, parse_codec("int8")},
          {"c", {2000}, ElementType::bf16, parse_codec("topk:ratio=0.1+int4")},
          {"d", {200, 300}, ElementType::f32, parse_codec("powersgd:rank=3")}};
}
/// Of what goes through the host, each by itself.
std::vector<Model> each_alone() { return {{four()[0]}, {four()[3]}}; }
template <class S>
void give_each_a_bucket(S& session, ParameterId parameters = 4) {
  for (ParameterId id = 0; id < parameters; ++id) session.add_bucket(std::vector<ParameterId>{id});
  session.seal();
}
using Bytes = std::vector<std::byte>;

/// Buffers after each of three steps, on hosts.
std::vector<Bytes> on_hosts(int ranks) {
  const Model model = four();
  std::vector<Bytes> results(static_cast<std::size_t>(ranks));
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = open_session(transport, model, two_shot());
    give_each_a_bucket(*session);
    Gradients gradients(model);
    for (int step = 0; step < 3; ++step) {
      gradients.fill_wide(Steps::seed(transport->rank(), step));
      session->all_reduce(gradients.pointers());
      session->commit();
      const Bytes bytes = gradients.bytes();
      Bytes& result = results[static_cast<std::size_t>(transport->rank())];
      result.insert(result.end(), bytes.begin(), bytes.end());
    }
  });
  return results;
}

/// Any order of starts and of waits, other ones on every rank.
TEST(CudaSessionChosen, BucketsStartAndAreWaitedForInAnyOrder) {
  constexpr int kRanks = 2;
  const Model model = four();
  const std::vector<Bytes> expected = on_hosts(kRanks);
  constexpr BucketId kOrders[][4] = {{0, 3, 1, 2}, {3, 2, 1, 0}, {1, 2, 0, 3},
                                     {2, 0, 3, 1}, {0, 1, 2, 3}, {1, 3, 0, 2}};
  for (const Join& join : {Join(by_nccl), Join(by_staging)}) {
    std::vector<Bytes> results(kRanks);
    cuda_emulation::use(cuda_emulation::kSchedules[2]);
    run_all_devices(
        kRanks,
        [&](const std::shared_ptr<cuda::Transport>& transport) {
          const auto rank = static_cast<std::size_t>(transport->rank());
          const auto session = open_device_session(transport, model, two_shot());
          give_each_a_bucket(*session);
          Gradients gradients(model);
          DeviceGradients on_device(model);
          const TestStream stream;
          for (std::size_t step = 0; step < 3; ++step) {
            gradients.fill_wide(Steps::seed(transport->rank(), static_cast<int>(step)));
            on_device.upload(gradients, stream);
            std::map<BucketId, cuda::Handle> handles;
            for (const BucketId id : kOrders[(2 * step + rank) % 6])
              handles.emplace(id, session->start(id, on_device.pointers().subspan(id, 1), stream));
            for (const BucketId id : kOrders[(2 * step + 3 * rank + 1) % 6]) handles.at(id).wait(stream);
            session->commit();
            on_device.download(gradients, stream);
            const Bytes bytes = gradients.bytes();
            results[rank].insert(results[rank].end(), bytes.begin(), bytes.end());
          }
          session->synchronize();
        },
        join);
    EXPECT_TRUE(results == expected);
  }
}

/// `start` returns though nobody else has come; `wait` ends once the other rank does.
TEST(CudaSessionChosen, StartDoesNotWaitForRanksAndWaitDoes) {
  for (const Model& model : each_alone()) {
    std::promise<void> started;
    run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
      const auto session = sealed_device_session(transport, model, two_shot());
      DeviceGradients gradients(model);
      const TestStream stream;
      gradients.upload(Gradients(model), stream);
      if (transport->rank() == 1) {
        EXPECT_EQ(started.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
      }
      cuda::Handle handle = session->start(0, gradients.pointers(), stream);
      if (transport->rank() == 0) started.set_value();
      handle.wait(stream);
      session->commit();
      session->synchronize();
    });
  }
}

TEST(CudaSessionChosen, ARankThatDoesNotComeEndsInAnErrorInTime) {
  for (const auto& [model, join] : {std::pair{each_alone()[0], Join(by_nccl)},
                                    {each_alone()[0], Join(by_staging)},
                                    {each_alone()[1], Join(by_nccl)}}) {
    std::promise<void> ended;
    SessionOptions options = two_shot();
    options.timeout = std::chrono::milliseconds(300);
    run_each_device(
        2,
        [&](const std::shared_ptr<cuda::Transport>& transport) {
          const auto session = sealed_device_session(transport, model, options);
          DeviceGradients gradients(model);
          const TestStream stream;
          if (transport->rank() == 1) return static_cast<void>(ended.get_future().wait_for(std::chrono::seconds(10)));
          gradients.upload(Gradients(model), stream);
          const double seconds = seconds_of([&] {
            EXPECT_THROW(session->all_reduce(gradients.pointers(), stream), Error);
            EXPECT_THROW(session->synchronize(), Error);
          });
          EXPECT_LT(seconds, 5);
          ended.set_value();
        },
        join);
  }
}

/// Where it cannot end, since an earlier bucket was not started, it says so.
TEST(CudaSessionChosen, SynchronizeWaitsForAllThatWasStarted) {
  const Model model = four();
  const std::vector<Bytes> expected = on_hosts(2);
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = open_device_session(transport, model, two_shot());
    give_each_a_bucket(*session);
    Gradients gradients(model);
    DeviceGradients on_device(model);
    const TestStream stream, another;
    gradients.fill_wide(Steps::seed(transport->rank(), 0));
    on_device.upload(gradients, stream);
    std::vector<cuda::Handle> handles;
    const auto start = [&](BucketId id) {
      handles.push_back(session->start(id, on_device.pointers().subspan(id, 1), stream));
    };
    start(2);
    EXPECT_ERROR(session->synchronize(), Errc::invalid_argument, "bucket 2 (c) is exchanged after bucket 0 (a)");
    for (const BucketId id : {0u, 1u, 3u}) start(id);
    session->synchronize();
    on_device.download(gradients, another);
    const Bytes bytes = gradients.bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected[static_cast<std::size_t>(transport->rank())].begin()));
    for (cuda::Handle& handle : handles) handle.wait(stream);
    session->commit();
    session->synchronize();
  });
}

/// There is a single copy, which is not whole before the end.
TEST(CudaSessionChosen, ResidualsOfABucketUnderWayAreRefusedWithoutRollback) {
  const Model model = {four()[0], four()[1]};
  SessionOptions options = two_shot();
  options.rollback = false;
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = open_device_session(transport, model, options);
    give_each_a_bucket(*session, 2);
    DeviceGradients gradients(model);
    const TestStream stream;
    gradients.upload(Gradients(model), stream);
    std::vector<cuda::Handle> handles;
    for (const BucketId id : {0u, 1u})
      handles.push_back(session->start(id, gradients.pointers().subspan(id, 1), stream));
    EXPECT_ERROR(session->sender_residual(0), Errc::invalid_argument, "sender_residual: bucket 0 (a) is under way");
    EXPECT_ERROR(session->owner_residual(1), Errc::invalid_argument, "owner_residual: bucket 1 (b) is under way");
    for (cuda::Handle& handle : handles) handle.wait(stream);
    EXPECT_EQ(session->sender_residual(0).size(), 3000u);
    EXPECT_FALSE(session->owner_residual(1).empty());
    session->commit();
    session->synchronize();
  });
}

/// Of the bucket itself, or of an earlier one, whose rounds hold it up; those wait for no other rank.
TEST(CudaSessionChosen, AProducerThatDoesNotComeEndsInAnErrorInTime) {
  const Model model = {four()[1], four()[0]};
  for (const BucketId late : {1u, 0u}) {
    std::atomic<bool> goes_on = false;
    const int ranks = late == 0 ? 2 : 1;
    std::barrier together(ranks);
    run_all_devices(ranks, [&](const std::shared_ptr<cuda::Transport>& transport) {
      auto session = open_device_session(transport, model, two_shot(std::chrono::milliseconds(300)));
      give_each_a_bucket(*session, 2);
      if (transport->rank() == 1) return together.arrive_and_wait();
      DeviceGradients gradients(model);
      const TestStream stream, stands_still;
      gradients.upload(Gradients(model), stream);
      stream.synchronize();
      cuda_emulation::enqueue(stands_still, "what stands still", [&] { return goes_on.load(); });
      std::map<BucketId, cuda::Handle> handles;
      for (const BucketId id : {1 - late, late})
        handles.emplace(id,
                        session->start(id, gradients.pointers().subspan(id, 1), id == late ? stands_still : stream));
      const double seconds = seconds_of([&] {
        EXPECT_ERROR(handles.at(1).wait(stream), Errc::timeout,
                     "the producer's stream, which did not come to the start of bucket " + std::to_string(late));
        session.reset();
      });
      EXPECT_LT(seconds, 3);
      goes_on = true;
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      together.arrive_and_wait();
    });
    EXPECT_EQ(cuda_emulation::last_report(), "");
  }
}

/// While a copy of 411 elements stands still: what nearly all was chosen of is copied when the host has seen that.
TEST(CudaSessionChosen, ACopyThatDoesNotEndIsWaitedForNoLongerThanTheTimeout) {
  const Model model = {{"a", {411}, ElementType::f32, parse_codec("topk:ratio=0.99")}};
  run_all_devices(1, [&](const std::shared_ptr<cuda::Transport>& transport) {
    auto session = sealed_device_session(transport, model, two_shot(std::chrono::milliseconds(300)));
    Gradients gradients(model);
    gradients.fill_bell(1);
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(gradients, stream);
    stream.synchronize();
    cuda_emulation::hold_copies(411 * sizeof(float));
    const double seconds = seconds_of([&] {
      EXPECT_ERROR(session->all_reduce(on_device.pointers(), stream), Errc::timeout, "a copy to the host was not done");
      session.reset();
    });
    EXPECT_LT(seconds, 3);
    cuda_emulation::hold_copies(0);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  });
  EXPECT_EQ(cuda_emulation::last_report(), "");
}
TEST(CudaSessionChosen, StartDoesNotWaitForTheCopyOfWhatIsSentWhole) {
  const Model model = {{"a", {411}, ElementType::f32, parse_codec("topk:ratio=1")}, four()[1]};
  run_all_devices(1, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = open_device_session(transport, model, two_shot(std::chrono::milliseconds(2000)));
    give_each_a_bucket(*session, 2);
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(Gradients(model), stream);
    stream.synchronize();
    cuda_emulation::hold_copies(411 * sizeof(float));
    std::vector<cuda::Handle> handles;
    const auto start = [&](BucketId id) {
      handles.push_back(session->start(id, on_device.pointers().subspan(id, 1), stream));
    };
    start(0);
    for (int i = 0; i < 100; ++i) cuda_emulation::let_work_go_on();
    EXPECT_LT(seconds_of([&] { EXPECT_NO_THROW(start(1)); }), 1);
    cuda_emulation::hold_copies(0);
    for (cuda::Handle& handle : handles) handle.wait(stream);
    session->commit();
    session->synchronize();
  });
}

/// Buckets that come before take more than the timeout together, none of them by itself.
TEST(CudaSessionChosen, TimeCountsFromTheTurn) {
  const Model model = {{"a", {900}, ElementType::f32, parse_codec("int8")},
                       {"b", {900}, ElementType::f32, parse_codec("int8")},
                       {"c", {3000}, ElementType::f32, parse_codec("topk:ratio=0.05")}};
  SessionOptions options = two_shot();
  options.timeout = std::chrono::milliseconds(1000);
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = open_device_session(transport, model, options);
    give_each_a_bucket(*session, 3);
    DeviceGradients gradients(model);
    const TestStream stream;
    gradients.upload(Gradients(model), stream);
    std::vector<cuda::Handle> handles;
    for (const BucketId id : {0u, 1u, 2u}) {
      if (transport->rank() == 1 && id != 2) std::this_thread::sleep_for(std::chrono::milliseconds(650));
      handles.push_back(session->start(id, gradients.pointers().subspan(id, 1), stream));
    }
    for (cuda::Handle& handle : handles) EXPECT_NO_THROW(handle.wait(stream));
    session->commit();
    session->synchronize();
  });
}

/// Lossy values of sums that the owner chooses from: room for what becomes of them is there from `seal` on.
TEST(CudaSessionChosen, TakesNoMemoryFromTheFirstStepOn) {
  const Model model = {{"a", {20'000}, ElementType::f32, parse_codec("topk:ratio=0.05+int4")},
                       {"b", {9000}, ElementType::bf16, parse_codec("topk:ratio=0.05")}};
  std::barrier together(2);
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model, two_shot());
    Gradients gradients(model);
    DeviceGradients on_device(model);
    const TestStream stream;
    const auto step = [&](int number) {
      gradients.fill_wide(Steps::seed(transport->rank(), number));
      on_device.upload(gradients, stream);
      session->all_reduce(on_device.pointers(), stream);
      session->commit();
      session->synchronize();
    };
    together.arrive_and_wait();
    const std::uint64_t before = cuda_emulation::calls().allocations;
    together.arrive_and_wait();
    for (int number = 0; number < 3; ++number) step(number);
    EXPECT_EQ(cuda_emulation::calls().allocations, before);
    together.arrive_and_wait();
  });
}

TEST(CudaSessionChosen, ARankThatEndsAStepOtherwiseIsNamed) {
  for (const Model& model : each_alone()) {
    const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
      const auto session = sealed_device_session(transport, model, two_shot());
      DeviceGradients gradients(model);
      const TestStream stream;
      gradients.upload(Gradients(model), stream);
      session->all_reduce(gradients.pointers(), stream);
      transport->rank() == 0 ? static_cast<void>(session->commit()) : session->rollback();
      session->all_reduce(gradients.pointers(), stream);
      session->synchronize();
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(outcomes[rank].error, Errc::mismatch) << outcomes[rank].message;
      EXPECT_TRUE(contains(outcomes[rank].message, "rank " + std::to_string(1 - rank) + " has ended 1 steps"))
          << outcomes[rank].message;
    }
  }
}

TEST(CudaSessionChosen, PoliciesOfNonFiniteElementsHold) {
  const Model model = {four()[0], four()[3]};
  SessionOptions options = two_shot();
  options.nonfinite = NonFinitePolicy::skip_step;
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model, options);
    DeviceGradients on_device(model);
    const TestStream stream;
    for (int step = 0; step < 3; ++step) {
      Gradients gradients(model);
      gradients.fill_bell(Steps::seed(transport->rank(), step));
      if (step == 1 && transport->rank() == 1) gradients.set(1, 7, std::numeric_limits<float>::quiet_NaN());
      on_device.upload(gradients, stream);
      const std::vector<float> before[] = {session->sender_residual(0), session->sender_residual(1)};
      session->all_reduce(on_device.pointers(), stream);
      EXPECT_EQ(session->commit(), step != 1);
      for (const ParameterId id : {0u, 1u}) EXPECT_EQ(session->sender_residual(id) == before[id], step == 1);
    }
  });
}

/// Also where ranges were cut: either kind of Session goes on from what the other saved.
TEST(CudaSessionChosen, StatesAreThoseOfHosts) {
  constexpr int kRanks = 3;
  const Model model = {{"a", {6000}, ElementType::f32, parse_codec("topk:ratio=0.1")},
                       {"b", {500}, ElementType::f16, parse_codec("topk:ratio=0.1+int8")}};
  const auto fill = [](Gradients& gradients, int rank, int step) {
    FastRandom random(Steps::seed(rank, step));
    gradients.fill([&](std::size_t, std::size_t i) { return random.bell() * (i < 700 ? 100.0f : 1e-3f); });
  };
  std::vector<Bytes> states(kRanks), ends(kRanks);
  SessionOptions on_hosts = two_shot();
  on_hosts.plan.share_elements = 1 << 20;
  run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, on_hosts);
    Gradients gradients(model);
    for (int step = 0; step < 4; ++step) {
      fill(gradients, transport->rank(), step);
      session->all_reduce(gradients.pointers());
      session->commit();
      if (step == 1) states[rank] = session->save();
    }
    ends[rank] = session->save();
  });
  run_all_devices(kRanks, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    Gradients gradients(model);
    DeviceGradients on_device(model);
    const TestStream stream;
    const auto steps = [&](cuda::Session& session, int from, int to) {
      for (int step = from; step < to; ++step) {
        fill(gradients, transport->rank(), step);
        on_device.upload(gradients, stream);
        session.all_reduce(on_device.pointers(), stream);
        session.commit();
      }
      stream.synchronize();
      return session.save();
    };
    const auto session = sealed_device_session(transport, model, two_shot());
    EXPECT_TRUE(without_run(steps(*session, 0, 2)) == without_run(states[rank]));
    const auto restored = sealed_device_session(transport, model, two_shot());
    restored->restore(states[rank]);
    EXPECT_TRUE(steps(*restored, 2, 4) == ends[rank]);
  });
}

}  // namespace
}  // namespace tightwire::testing::cuda_chosen_order_test
