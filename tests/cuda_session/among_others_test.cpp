// What a Session on a device leaves alone in the program that it is part of: other threads, captures, errors, memory.
#include <atomic>
#include <barrier>
#include <thread>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "capture.hpp"
#include "cuda_emulation/runtime/memory.hpp"
#include "cuda_emulation/runtime/stream.hpp"
#include "device_steps.hpp"
#include "emulated.hpp"
#include "host_messages.hpp"
#include "resources.hpp"
#include "unit/support/small_model.hpp"

namespace tightwire::testing::cuda_among_others_test {
namespace {

using std::chrono::milliseconds;

/// A single rank in this thread, on a device.
std::shared_ptr<cuda::Transport> alone(int device = 0) {
  cuda_emulation::reset();
  cuda_emulation::reset_nccl();
  cuda_emulation::options().devices = device + 1;
  cuda_emulation::use(cuda_emulation::kSchedules[0]);
  must(cudaSetDevice(device));
  return nccl::open(*local::make(1)[0], std::chrono::seconds(5), cuda_emulation::nccl_double);
}
/// A Session with gradients and the stream that they come from.
struct Trainer {
  explicit Trainer(const std::shared_ptr<cuda::Transport>& transport, Model its_model = one_tensor(),
                   SessionOptions options = two_shot())
      : model(std::move(its_model)),
        session(sealed_device_session(transport, model, std::move(options))),
        gradients(model) {
    gradients.upload(Gradients(model), stream);
  }
  void step() {
    session->all_reduce(gradients.pointers(), stream);
    session->commit();
  }
  static Model one_tensor() { return {{"a", {64}, ElementType::f32, Int8{}}}; }
  Model model;
  TestStream stream;
  std::unique_ptr<cuda::Session> session;
  DeviceGradients gradients;
};
void expect_refused(Errc code, const std::string& words, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_TRUE(contains(error.what(), words)) << error.what();
  }
}
TEST(CudaSessionAmongOthers, AStreamThatIsCapturedIsRefusedAndTheSessionGoesOn) {
  Trainer trainer(alone());
  const TestStream stream;
  const auto pointers = trainer.gradients.pointers();
  cuda::Session& session = *trainer.session;
  {
    const Capture capture(stream);
    expect_refused(Errc::unsupported, "start: the stream is captured", [&] { session.start(0, pointers, stream); });
    expect_refused(Errc::unsupported, "the stream is captured", [&] { session.all_reduce(pointers, stream); });
    cuda::Handle handle = session.start(0, pointers, trainer.stream);
    expect_refused(Errc::unsupported, "wait: the stream is captured", [&] { handle.wait(stream); });
    handle.wait(trainer.stream);
  }
  EXPECT_TRUE(session.commit());
  session.synchronize();
}

/// The default stream would wait for it.
TEST(CudaSessionAmongOthers, TheDefaultStreamIsRefusedBesideACaptureThatItWaitsFor) {
  Trainer trainer(alone());
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream));
  {
    const Capture capture(stream);
    expect_refused(Errc::unsupported, "all_reduce: the stream is captured",
                   [&] { trainer.session->all_reduce(trainer.gradients.pointers(), nullptr); });
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    trainer.step();
  }
  trainer.session->all_reduce(trainer.gradients.pointers(), nullptr);
  trainer.session->synchronize();
  cudaStreamDestroy(stream);
}

TEST(CudaSessionAmongOthers, NoCallSpoilsWhatAnotherThreadCaptures) {
  const auto transport = alone();
  Trainer trainer(transport);
  const TestStream stream;
  auto another = open_device_session(transport, trainer.model, two_shot());
  {
    const Capture capture(stream);
    for (int step = 0; step < 3; ++step) trainer.step();
    trainer.session->synchronize();
    trainer.session->save();
    another->seal();
    another.reset();
  }
  EXPECT_EQ(cuda_emulation::last_report(), "");
}

TEST(CudaSessionAmongOthers, AThreadWithoutADeviceGetsNoContextOnAnother) {
  Trainer trainer(alone(1));
  std::thread([&] {
    trainer.step();
    trainer.session->synchronize();
  }).join();
  EXPECT_FALSE(cuda_emulation::context_was_made(0));
  std::thread([&] {
    must(cudaSetDevice(0));
    trainer.session->synchronize();
    int device = -1;
    must(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
  }).join();
}

/// A kernel that is loaded at its first launch may wait for a round that is under way.
TEST(CudaSessionAmongOthers, AllKernelsAreLoadedWhenASessionIsSealed) {
  Model model = small_model();
  model.push_back({"drawn", {300}, ElementType::f32, parse_codec("randomk:ratio=0.1+int8")});
  std::barrier together(2);
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    Trainer trainer(transport, model);
    together.arrive_and_wait();
    cuda_emulation::options().only_loaded_kernels = true;
    trainer.step();
    trainer.session->synchronize();
  });
  cuda_emulation::options().only_loaded_kernels = false;
}

/// Neither the end of a Session waits for it, nor is memory freed that the device may come to.
TEST(CudaSessionAmongOthers, ASessionEndsWhereAStreamOfTheCallersStandsStill) {
  std::atomic<bool> goes_on = false;
  Trainer trainer(alone(), Trainer::one_tensor(), two_shot(milliseconds(100)));
  cuda_emulation::enqueue(trainer.stream, "what stands still", [&] { return goes_on.load(); });
  const auto began = std::chrono::steady_clock::now();
  trainer.step();
  trainer.session.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1500));
  goes_on = true;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cuda_emulation::last_report(), "");
}

TEST(CudaSessionAmongOthers, AnErrorThatIsNotOursStays) {
  Trainer trainer(alone());
  trainer.step();
  EXPECT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
  trainer.step();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  trainer.session->synchronize();
}

TEST(CudaSessionAmongOthers, MemoryThatCannotBeClearedIsFreed) {
  alone();
  const std::size_t before = cuda_emulation::allocations().size();
  cuda_emulation::options().fail_memset = true;
  expect_refused(Errc::device, "cudaMemset", [] { cuda::detail::Memory(64, cuda::detail::Memory::Kind::device, 0); });
  cuda_emulation::options().fail_memset = false;
  EXPECT_EQ(cuda_emulation::allocations().size(), before);
}

/// Where a step needs more than there is: the default stream would wait for others', and cannot while they are
/// captured.
TEST(CudaSessionAmongOthers, MemoryIsTakenBesideACaptureThatTheDefaultStreamWaitsFor) {
  alone();
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream));
  {
    const Capture capture(stream);
    const cuda::detail::BesideCaptures beside_captures;
    const cuda::detail::Memory memory(64, cuda::detail::Memory::Kind::device, 0);
    std::vector<std::byte> bytes(64, std::byte{1});
    const TestStream copies;
    must(cudaMemcpyAsync(bytes.data(), memory.data(), 64, cudaMemcpyDeviceToHost, copies));
    copies.synchronize();
    EXPECT_EQ(bytes, std::vector<std::byte>(64));
  }
  cudaStreamDestroy(stream);
}

/// To free it waits for the whole device.
TEST(CudaSessionAmongOthers, MessagesOfTheHostsUseTheirMemoryAgain) {
  std::barrier together(2);
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const int peer = 1 - transport->rank();
    const auto channel = transport->open_channel(std::chrono::seconds(5));
    cuda::detail::HostMessages host(*channel, std::chrono::seconds(5));
    const auto exchange = [&](int value) {
      int mine = 10 * transport->rank() + value, theirs = -1;
      std::vector<Message> round{
          {Message::Kind::send, peer, 0, reinterpret_cast<std::byte*>(&mine), sizeof mine},
          {Message::Kind::receive, peer, 0, reinterpret_cast<std::byte*>(&theirs), sizeof theirs}};
      wait(host, host.post(round), std::chrono::seconds(5), "the test");
      EXPECT_EQ(theirs, 10 * peer + value);
      together.arrive_and_wait();
    };
    exchange(1);
    const std::uint64_t before = cuda_emulation::calls().allocations;
    together.arrive_and_wait();
    for (int i = 2; i < 5; ++i) exchange(i);
    EXPECT_EQ(cuda_emulation::calls().allocations, before);
    together.arrive_and_wait();
  });
}

/// A transport of two ranks, of which rounds do what a test says; over another one, if it has one.
class Scripted final : public cuda::Transport {
 public:
  std::function<void()> on_post, on_check;
  explicit Scripted(std::shared_ptr<cuda::Transport> inner = nullptr) : inner_(std::move(inner)) {}
  int rank() const noexcept override { return inner_ ? inner_->rank() : 0; }
  int size() const noexcept override { return 2; }
  int device() const noexcept override { return inner_ ? inner_->device() : 0; }
  std::string describe() const override { return "scripted"; }
  std::shared_ptr<cuda::Transport> open_channel(milliseconds timeout) override {
    return channel = std::make_shared<Scripted>(inner_->open_channel(timeout));
  }
  void post(std::span<const Message> round, cuda::Stream stream) override {
    if (on_post) return on_post();
    if (inner_) inner_->post(round, stream);
  }
  void check() override {
    if (on_check) return on_check();
    if (inner_) inner_->check();
  }
  void abort(std::string_view reason) noexcept override {
    if (inner_) inner_->abort(reason);
  }
  std::shared_ptr<Scripted> channel;

 private:
  std::shared_ptr<cuda::Transport> inner_;
};
/// What a check says: nothing at first, then that the round was given up, which ends it.
std::function<void()> gives_up_at_the_second() {
  return [seen = std::make_shared<int>(0)] {
    if (++*seen > 1) throw Error(Errc::timeout, "given up");
  };
}

TEST(CudaSessionAmongOthers, ARoundThatCannotBePostedKeepsItsMemory) {
  alone();
  Scripted transport;
  transport.on_post = [] { throw Error(Errc::transport, "no way"); };
  std::atomic<bool> goes_on = false;
  const TestStream stream;
  cuda_emulation::enqueue(stream, "what stands still", [&] { return goes_on.load(); });
  std::vector<std::byte> bytes(64);
  const double seconds = seconds_of([&] {
    cuda::detail::HostMessages host(transport, milliseconds(100), stream);
    const Message message{Message::Kind::send, 1, 0, bytes.data(), bytes.size()};
    expect_refused(Errc::transport, "no way", [&] { host.post({&message, 1}); });
  });
  EXPECT_LT(seconds, 1.5);
  goes_on = true;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cuda_emulation::last_report(), "");
}

/// Its frames are those of the round before, and what is wrong with them is not what went wrong.
TEST(CudaSessionAmongOthers, WhatARoundBroughtThatWasGivenUpIsNotLookedAt) {
  alone();
  Scripted transport;
  const TestStream stream;
  std::vector<std::byte> bytes(64);
  {
    cuda::detail::HostMessages host(transport, milliseconds(100), stream);
    const Message message{Message::Kind::receive, 1, 0, bytes.data(), bytes.size()};
    const Ticket ticket = host.post({&message, 1});
    stream.synchronize();
    transport.on_check = gives_up_at_the_second();
    expect_refused(Errc::timeout, "given up", [&] { host.done(ticket); });
  }
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& inner) {
    const auto scripted = std::make_shared<Scripted>(inner);
    Trainer trainer(scripted);
    if (inner->rank() == 1) return;
    scripted->channel->on_post = [] {};
    trainer.step();
    trainer.stream.synchronize();
    scripted->channel->on_check = gives_up_at_the_second();
    expect_refused(Errc::timeout, "given up", [&] { trainer.session->synchronize(); });
  });
}

}  // namespace
}  // namespace tightwire::testing::cuda_among_others_test
