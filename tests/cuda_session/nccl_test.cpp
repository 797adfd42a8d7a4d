// The NCCL transport: what can go wrong while ranks come and while rounds are under way, and how soon that is told.
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <thread>

#include <tightwire/rendezvous.hpp>

#include "device_steps.hpp"
#include "emulated.hpp"
#include "unit/support/small_model.hpp"

namespace tightwire::testing::cuda_nccl_test {
namespace {

using std::chrono::milliseconds;

/// Calls that NCCL ends later, as it may with a communicator that does not block.
TEST(Nccl, CallsMayBeUnderWay) {
  use(0);
  Steps steps;
  steps.steps = 2;
  steps.options.plan.algorithm = Algorithm::two_shot;
  const auto expected = steps.run(2);
  cuda_emulation::settle_slowly(true);
  std::vector<std::vector<std::byte>> results;
  const auto slowly = [](cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
    cuda_emulation::settle_slowly(true);
    reduce_at_once(session, gradients, stream);
  };
  ASSERT_TRUE(same_results(run_on_devices(steps, 2, slowly), expected));
  cuda_emulation::settle_slowly(false);
}

TEST(Nccl, ARankThatDoesNotComeEndsTheWait) {
  const auto hosts = local::make(2);
  const auto outcomes = run_each(hosts, [&](const std::shared_ptr<Transport>& host) {
    if (host->rank() == 1) return;
    const double seconds =
        seconds_of([&] { EXPECT_THROW(nccl::open(*host, milliseconds(200), cuda_emulation::nccl_double), Error); });
    EXPECT_LT(seconds, 2);
  });
  EXPECT_FALSE(outcomes[0].error) << outcomes[0].message;
}

/// The id came, and then one of them stays away from NCCL itself.
TEST(Nccl, ARankThatDoesNotSplitEndsTheWait) {
  const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    if (transport->rank() == 0) transport->open_channel(milliseconds(200));
  });
  EXPECT_EQ(outcomes[0].error, Errc::timeout);
  EXPECT_TRUE(contains(outcomes[0].message, "rank 0: ncclCommSplit"));
}

/// Whoever waits for the stream is released, and the next call says why.
TEST(Nccl, ARoundThatTakesTooLongIsAborted) {
  use(0);
  const Model model = small_model();
  const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model, two_shot(milliseconds(300)));
    if (transport->rank() == 1) {
      std::this_thread::sleep_for(milliseconds(1000));
      return;
    }
    DeviceGradients gradients(model);
    const TestStream stream;
    gradients.upload(Gradients(model), stream);
    EXPECT_LT(seconds_of([&] {
                session->all_reduce(gradients.pointers(), stream);
                session->commit();
                stream.synchronize();
              }),
              0.8);
    session->synchronize();
  });
  EXPECT_EQ(outcomes[0].error, Errc::timeout);
  EXPECT_TRUE(contains(outcomes[0].message, "rank 0: a round over NCCL was not done after 300 ms"));
}

/// A channel and its memory on a device, of which each rank sends the other what it has.
struct Pair {
  explicit Pair(cuda::Transport& transport, milliseconds timeout) : peer(1 - transport.rank()) {
    channel = transport.open_channel(timeout);
    must(cudaMalloc(&memory, 2 * kBytes));
    must(cudaMemset(memory, 1, 2 * kBytes));
    must(cudaStreamSynchronize(nullptr));
  }
  void post() {
    auto* const bytes = static_cast<std::byte*>(memory);
    channel->post(std::vector<Message>{{Message::Kind::send, peer, 0, bytes, kBytes},
                                       {Message::Kind::receive, peer, 0, bytes + kBytes, kBytes}},
                  stream);
  }
  static constexpr std::size_t kBytes = 64;
  int peer;
  std::shared_ptr<cuda::Transport> channel;
  void* memory = nullptr;
  TestStream stream;
};
constexpr std::uint64_t kPerRound = 3;  ///< what is on a stream for one: an event before and after it

/// The call to CUDA that does not return is not in the way of who watches.
TEST(Nccl, ACallThatWaitsForAFullQueueIsReleasedByTheTimeout) {
  use(0);
  std::atomic<bool> over = false;
  const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    Pair pair(*transport, milliseconds(300));
    while (transport->rank() == 1 && !over) std::this_thread::sleep_for(milliseconds(1));
    if (transport->rank() == 1) return;
    pair.post();
    cuda_emulation::options().queue = kPerRound - 1;  // full, and it stays so
    const double seconds = seconds_of([&] { EXPECT_THROW(pair.post(), Error); });
    cuda_emulation::options().queue = 0;
    over = true;
    EXPECT_LT(seconds, 1.5);
    pair.channel->check();
  });
  EXPECT_EQ(outcomes[0].error, Errc::timeout) << outcomes[0].message;
  EXPECT_TRUE(contains(outcomes[0].message, "a round over NCCL was not done after 300 ms"));
}
TEST(Nccl, ACallThatWaitsForAFullQueueIsReleasedByAnAbort) {
  use(0);
  std::atomic<bool> over = false;
  const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    Pair pair(*transport, std::chrono::seconds(20));
    while (transport->rank() == 1 && !over) std::this_thread::sleep_for(milliseconds(1));
    if (transport->rank() == 1) return;
    pair.post();
    cuda_emulation::options().queue = kPerRound - 1;  // full, and it stays so
    std::thread another([&] {
      std::this_thread::sleep_for(milliseconds(100));
      EXPECT_NO_THROW(pair.channel->check());  // does not wait either
      pair.channel->abort("the loss is NaN");
    });
    const double seconds = seconds_of([&] { EXPECT_THROW(pair.post(), Error); });
    another.join();
    cuda_emulation::options().queue = 0;
    over = true;
    EXPECT_LT(seconds, 1.5);
    pair.channel->check();
  });
  EXPECT_EQ(outcomes[0].error, Errc::peer_lost) << outcomes[0].message;
  EXPECT_TRUE(contains(outcomes[0].message, "the loss is NaN"));
}

/// The host is ahead by a number of rounds and no more, so that CUDA's queues have room: no call of CUDA's waits.
TEST(Nccl, TheHostRunsAheadByABoundedNumberOfRounds) {
  use(0);
  constexpr std::uint64_t kMost = 64;
  constexpr int kRounds = 200;
  std::atomic<int> posted = 0;
  std::atomic<bool> counted = false;
  std::barrier together(2);
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    Pair pair(*transport, std::chrono::seconds(20));
    together.arrive_and_wait();
    if (transport->rank() == 1) {
      while (posted < static_cast<int>(kMost)) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(100));
      EXPECT_EQ(posted, static_cast<int>(kMost));
    } else {
      cuda_emulation::options().queue = kPerRound * kMost;
    }
    const std::uint64_t waits = cuda_emulation::calls().waits;
    for (int round = 0; round < kRounds; ++round) {
      pair.post();
      if (transport->rank() == 0) ++posted;
    }
    if (transport->rank() == 0) {
      EXPECT_EQ(cuda_emulation::calls().waits, waits);
      counted = true;
    }
    while (!counted) std::this_thread::sleep_for(milliseconds(1));
    pair.stream.synchronize();
  });
  cuda_emulation::options().queue = 0;
}

TEST(Nccl, AnAsynchronousErrorSurfacesAndNamesRankAndCall) {
  constexpr int kRemoteError = 6;  // ncclRemoteError
  const Model model = small_model();
  const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model, two_shot());
    if (transport->rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      cuda_emulation::fail_asynchronously(0, kRemoteError);
      std::this_thread::sleep_for(milliseconds(300));
      return;
    }
    reduce_once(*session, model);
  });
  EXPECT_EQ(outcomes[0].error, Errc::peer_lost);
  EXPECT_TRUE(contains(outcomes[0].message, "rank 0: an operation that was under way: remote process exited"));
  cuda_emulation::reset_nccl();
}

TEST(Nccl, ARankWithoutNcclIsNamedOnEveryRank) {
  const auto outcomes = run_each(local::make(2), [&](const std::shared_ptr<Transport>& host) {
    const auto missing = [&]() -> const nccl::Api& {
      if (host->rank() == 1) throw Error(Errc::unsupported, "libnccl.so.2: cannot open shared object file");
      return cuda_emulation::nccl_double();
    };
    nccl::open(*host, std::chrono::seconds(5), missing);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, Errc::unsupported);
    EXPECT_TRUE(contains(outcome.message, "rank 1 cannot use NCCL: libnccl.so.2"));
  }
}

/// It stays the caller's: a Session works on a part of it, and leaves it open.
TEST(Nccl, ACommunicatorOfTheCallersIsAdopted) {
  use(1);
  cuda_emulation::reset();
  cuda_emulation::reset_nccl();
  cuda_emulation::options().devices = 2;
  const Model model = small_model();
  run_all(2, [&](const std::shared_ptr<Transport>& host) {
    must(cudaSetDevice(host->rank()));
    ncclComm* const communicator = cuda_emulation::join_communicator(2, host->rank(), 1);
    for (int i = 0; i < 2; ++i) {
      const auto transport = nccl::adopt(communicator, std::chrono::seconds(5), cuda_emulation::nccl_double());
      EXPECT_EQ(transport->rank(), host->rank());
      EXPECT_EQ(transport->device(), host->rank());
      reduce_once(*sealed_device_session(transport, model, two_shot()), model);
    }
    cuda_emulation::leave_communicator(communicator);
  });
  EXPECT_EQ(cuda_emulation::living_communicators(), 0);
  EXPECT_THROW(nccl::adopt(nullptr, std::chrono::seconds(1), cuda_emulation::nccl_double()), Error);
}

/// NCCL may end the split after we gave it up: the communicator goes on, as it is the caller's.
TEST(Nccl, ASplitThatIsGivenUpMayEndLater) {
  cuda_emulation::reset();
  cuda_emulation::reset_nccl();
  cuda_emulation::options().devices = 1;
  cudaSetDevice(0);
  ncclComm* const communicator = cuda_emulation::join_communicator(1, 0, 2);
  {
    const auto transport = nccl::adopt(communicator, std::chrono::seconds(5), cuda_emulation::nccl_double());
    cuda_emulation::hold_splits();
    EXPECT_THROW(transport->open_channel(milliseconds(50)), Error);
  }
  const std::vector<ncclComm*> children = cuda_emulation::end_held_splits();
  ASSERT_EQ(children.size(), 1u);
  EXPECT_EQ(cuda_emulation::last_report(), "");
  cuda_emulation::leave_communicator(children[0]);
  cuda_emulation::leave_communicator(communicator);
  EXPECT_EQ(cuda_emulation::living_communicators(), 0);
}

std::string temporary_folder() {
  char folder[] = "/tmp/tightwire-nccl-XXXXXX";
  return ::mkdtemp(folder);
}
void join_by_rendezvous(int ranks, const DeviceBody& body, std::vector<Outcome>& outcomes) {
  cuda_emulation::reset();
  cuda_emulation::reset_nccl();
  cuda_emulation::options().devices = ranks;
  const std::string folder = temporary_folder();
  outcomes = run_each(local::make(ranks), [&](const std::shared_ptr<Transport>& host) {
    must(cudaSetDevice(host->rank()));
    body(nccl::open({.rank = host->rank(),
                     .size = ranks,
                     .address = "local://" + folder + "/meet",
                     .key = "a test's",
                     .timeout = std::chrono::seconds(20)},
                    cuda_emulation::nccl_double));
  });
  std::system(("rm -r " + folder).c_str());
}

TEST(Nccl, RanksMeetByRendezvous) {
  use(2);
  const Model model = small_model();
  std::vector<Outcome> outcomes;
  join_by_rendezvous(
      3, [&](const auto& transport) { reduce_once(*sealed_device_session(transport, model, two_shot()), model); },
      outcomes);
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.error) << outcome.message;
}

/// Long before the timeout of 20 s.
TEST(Nccl, ARankThatGivesUpIsNoticedByTheOthers) {
  const Model model = small_model();
  std::vector<Outcome> outcomes;
  const double seconds = seconds_of([&] {
    join_by_rendezvous(
        2,
        [&](const auto& transport) {
          const auto session = sealed_device_session(transport, model, two_shot());
          if (transport->rank() == 1) {
            transport->abort("the loss is NaN");
            return;
          }
          DeviceGradients gradients(model);
          const TestStream stream;
          gradients.upload(Gradients(model), stream);
          session->all_reduce(gradients.pointers(), stream);
          stream.synchronize();  // released by who watches over the round
          session->synchronize();
        },
        outcomes);
  });
  EXPECT_LT(seconds, 2);
  EXPECT_EQ(outcomes[0].error, Errc::peer_lost);
  EXPECT_TRUE(contains(outcomes[0].message, "rank 1 lost"));
  EXPECT_TRUE(contains(outcomes[0].message, "the loss is NaN"));
}

}  // namespace
}  // namespace tightwire::testing::cuda_nccl_test
