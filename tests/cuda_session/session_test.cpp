// Steps as transactions, non-finite elements, disagreements and misuse of Sessions on devices.
#include <cmath>
#include <limits>
#include <new>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "device_steps.hpp"
#include "emulated.hpp"
#include "unit/support/small_model.hpp"

namespace tightwire::testing::cuda_session_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string refusal(Errc code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}
void expect_refused(Errc code, const std::string& words, const std::function<void()>& call) {
  EXPECT_TRUE(contains(refusal(code, call), words));
}
/// A single rank in this thread.
std::shared_ptr<cuda::Transport> alone() {
  cuda_emulation::reset();
  cuda_emulation::reset_nccl();
  cuda_emulation::options().devices = 1;
  cuda_emulation::use(cuda_emulation::kSchedules[0]);
  cudaSetDevice(0);
  return nccl::open(*local::make(1)[0], std::chrono::seconds(5), cuda_emulation::nccl_double);
}

/// A step of NaN on one rank between two of numbers, and what each kind of Session says to it.
struct Story {
  std::vector<bool> kept;
  std::vector<std::byte> bytes;
  std::uint64_t nonfinite = 0;
};
template <class S, class ReduceAndRead>
void tell(S& session, Story& story, Gradients& gradients, bool rolls_back, const ReduceAndRead& reduce) {
  for (int step = 0; step < 4; ++step) {
    gradients.fill_bell(Steps::seed(session.rank(), step));
    if (step == 1 && session.rank() == 0) gradients.set(1, 7, kNaN);
    if (step == 1 && session.rank() == 1) gradients.set(0, 1100, kNaN);
    reduce();
    if (rolls_back && step == 2)
      session.rollback();
    else
      story.kept.push_back(session.commit());
    const std::vector<std::byte> bytes = gradients.bytes();
    story.bytes.insert(story.bytes.end(), bytes.begin(), bytes.end());
  }
}

TEST(CudaSessionSteps, RollBacksAndSkippedStepsAreThoseOfHosts) {
  constexpr int kRanks = 2;
  const Model model = small_model();
  for (const NonFinitePolicy policy : {NonFinitePolicy::propagate, NonFinitePolicy::skip_step})
    for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot}) {
      SCOPED_TRACE(std::string(to_string(policy)) + " " + to_string(algorithm));
      SessionOptions options = two_shot();
      options.plan.algorithm = algorithm;
      options.nonfinite = policy;
      const bool rolls_back = policy == NonFinitePolicy::propagate;
      Story hosts[kRanks], devices[kRanks];
      run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
        const auto session = sealed_session(transport, model, options);
        Gradients gradients(model);
        Story& story = hosts[transport->rank()];
        tell(*session, story, gradients, rolls_back, [&] { session->all_reduce(gradients.pointers()); });
        story.nonfinite = session->total().nonfinite;
      });
      cuda_emulation::use(cuda_emulation::kSchedules[2]);
      run_all_devices(kRanks, [&](const std::shared_ptr<cuda::Transport>& transport) {
        const auto session = sealed_device_session(transport, model, options);
        Gradients gradients(model);
        DeviceGradients on_device(model);
        const TestStream stream;
        Story& story = devices[transport->rank()];
        tell(*session, story, gradients, rolls_back, [&] {
          on_device.upload(gradients, stream);
          session->all_reduce(on_device.pointers(), stream);
          on_device.download(gradients, stream);
        });
        session->synchronize();
        story.nonfinite = session->total().nonfinite;
        EXPECT_EQ(session->steps(), 4u);
      });
      EXPECT_EQ(hosts[0].kept.size(), rolls_back ? 3u : 4u);
      EXPECT_EQ(hosts[0].kept[1], rolls_back);
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(devices[rank].kept, hosts[rank].kept);
        EXPECT_TRUE(devices[rank].bytes == hosts[rank].bytes) << "rank " << rank;
        EXPECT_EQ(devices[rank].nonfinite, hosts[rank].nonfinite);
        EXPECT_NE(devices[rank].nonfinite, 0u);
      }
    }
}

TEST(CudaSessionSteps, AnErrorPolicyThrowsAtTheEndOfTheStep) {
  const Model model = small_model();
  SessionOptions options = two_shot();
  options.nonfinite = NonFinitePolicy::error;
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model, options);
    Gradients gradients(model);
    gradients.fill_bell(1);
    if (transport->rank() == 1) gradients.set(0, 3, kNaN);
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(gradients, stream);
    session->all_reduce(on_device.pointers(), stream);
    expect_refused(Errc::nonfinite, "roll it back", [&] { session->commit(); });
    session->rollback();
    gradients.fill_bell(2);
    on_device.upload(gradients, stream);
    session->all_reduce(on_device.pointers(), stream);
    EXPECT_TRUE(session->commit());
    stream.synchronize();
  });
}

/// Whoever has asked before: one rank alone does.
TEST(CudaSessionSteps, WhatAStepMetThatWasRolledBackIsNotChargedToTheNext) {
  const Model model = small_model();
  for (const NonFinitePolicy policy : {NonFinitePolicy::skip_step, NonFinitePolicy::error}) {
    SessionOptions options = two_shot();
    options.nonfinite = policy;
    run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
      const auto session = sealed_device_session(transport, model, options);
      DeviceGradients on_device(model);
      const TestStream stream;
      for (int step = 0; step < 4; ++step) {
        Gradients gradients(model);
        gradients.fill_bell(Steps::seed(transport->rank(), step));
        if (step % 2 == 0 && transport->rank() == 0) gradients.set(1, 7, kNaN);
        on_device.upload(gradients, stream);
        session->all_reduce(on_device.pointers(), stream);
        if (step == 2 && transport->rank() == 1) session->synchronize();
        if (step % 2 == 0)
          session->rollback();
        else
          EXPECT_TRUE(session->commit());
      }
      EXPECT_NE(session->total().nonfinite, 0u);
    });
  }
}

/// The frames say so, and the error names both sides.
TEST(CudaSessionSteps, ARankThatEndsAStepOtherwiseIsNamed) {
  const Model model = small_model();
  const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model, two_shot());
    Gradients gradients(model);
    gradients.fill_bell(1);
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(gradients, stream);
    session->all_reduce(on_device.pointers(), stream);
    transport->rank() == 0 ? static_cast<void>(session->commit()) : session->rollback();
    session->all_reduce(on_device.pointers(), stream);
    session->synchronize();
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(outcomes[rank].error, Errc::mismatch) << outcomes[rank].message;
    EXPECT_TRUE(contains(outcomes[rank].message, "rank " + std::to_string(1 - rank) + " has ended 1 steps"));
    EXPECT_TRUE(contains(outcomes[rank].message, "bucket 0"));
  }
}

TEST(CudaSessionSteps, ABucketThatIsStartedAtAnotherRankOnlyIsNamed) {
  const Model model = {{"a", {64}, ElementType::f32, Int8{}}, {"b", {64}, ElementType::f32, Int8{}}};
  const auto outcomes = run_each_device(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = open_device_session(transport, model, two_shot());
    for (const ParameterId id : {0u, 1u}) session->add_bucket(std::vector<ParameterId>{id});
    session->seal();
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(Gradients(model), stream);
    for (BucketId id = 0; id <= static_cast<BucketId>(transport->rank()); ++id)
      session->start(id, on_device.pointers().subspan(id, 1), stream).wait(stream);
    session->commit();
    if (transport->rank() == 0) session->all_reduce(on_device.pointers(), stream);
    session->synchronize();
  });
  EXPECT_EQ(outcomes[0].error, Errc::mismatch) << outcomes[0].message;
  EXPECT_TRUE(contains(outcomes[0].message, "rank 1 has ended 0 steps"));
}

TEST(CudaSessionSeal, RanksThatDifferAreNamed) {
  const auto outcomes = run_each_device(3, [&](const std::shared_ptr<cuda::Transport>& transport) {
    Model model = small_model();
    if (transport->rank() == 1) model[1].codec = Int8{};
    sealed_device_session(transport, model, two_shot());
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, Errc::mismatch);
    EXPECT_TRUE(contains(outcome.message, "int4"));
    EXPECT_TRUE(contains(outcome.message, "rank 1 has"));
  }
}

TEST(CudaSessionSeal, WhatIsNotOnDevicesIsRefused) {
  const auto transport = alone();
  expect_refused(Errc::invalid_argument, "null", [] { cuda::Session(nullptr); });
  SessionOptions options;
  options.momentum = {.factor = 0.9f, .optimizer_momentum = 0.0};
  const Model drawn = {{"weight", {640}, ElementType::f32, parse_codec("randomk:ratio=0.1")}};
  expect_refused(Errc::unsupported, "\"weight\"", [&] { sealed_device_session(transport, drawn, options); });
  options.momentum.clip_norm = 1;
  expect_refused(Errc::unsupported, "clip_norm", [&] { cuda::Session(transport, options); });
  options = {};
  options.hierarchy.node_of_rank = {0};
  expect_refused(Errc::unsupported, "hierarchies", [&] { cuda::Session(transport, options); });
  options = {};
  options.residual = ElementType::bf16;
  expect_refused(Errc::unsupported, "residuals on devices are fp32", [&] { cuda::Session(transport, options); });
  options = {};
  options.plan.share_elements = 4096;
  expect_refused(Errc::invalid_argument, "4096", [&] { cuda::Session(transport, options); });
  const Model model = small_model();
  const auto wrong = [](const Codec&, ElementType) { return cuda::make_coder("int3"); };
  expect_refused(Errc::invalid_argument, "int3", [&] {
    cuda::Session session(alone(), {}, wrong);
    session.add("weight", {64, 48});
    session.seal();
  });
}

/// Another coder, at whose third encoding the host's memory is used up.
class Exhausting final : public cuda::Coder {
 public:
  explicit Exhausting(std::shared_ptr<const cuda::Coder> coder) : coder_(std::move(coder)) {}
  std::string spec() const override { return coder_->spec(); }
  std::size_t block() const noexcept override { return coder_->block(); }
  std::size_t wire_bytes(std::size_t count) const noexcept override { return coder_->wire_bytes(count); }
  bool lossless(ElementType type) const noexcept override { return coder_->lossless(type); }
  bool stochastic(bool feedback) const noexcept override { return coder_->stochastic(feedback); }
  void load() const override { coder_->load(); }
  void encode(ElementType type, const tightwire::Coder::Encode& job, std::uint64_t* met,
              cuda::Stream stream) const override {
    if (++uses_ == 3) throw std::bad_alloc();
    coder_->encode(type, job, met, stream);
  }
  void combine(ElementType type, const tightwire::Coder::Combine& job, tightwire::Coder::NonFinite* met,
               cuda::Stream stream) const override {
    coder_->combine(type, job, met, stream);
  }
  void decode(ElementType type, const tightwire::Coder::Decode& job, cuda::Stream stream) const override {
    coder_->decode(type, job, stream);
  }

 private:
  std::shared_ptr<const cuda::Coder> coder_;
  mutable int uses_ = 0;
};

TEST(CudaSessionMisuse, WhatIsNoErrorOfOursClosesTheSessionToo) {
  const Model model = {{"w", {60, 50}, ElementType::f32, Int8{}}};
  const auto outcomes = run_each_device(
      2,
      [&](const std::shared_ptr<cuda::Transport>& transport) {
        const cuda::MakeCoder make = [&](const Codec& codec, ElementType type) {
          return std::make_shared<const Exhausting>(cuda::make_coder(codec, type));
        };
        SessionOptions options = two_shot();
        options.codec = Int8{};
        cuda::Session session(transport, options, transport->rank() == 0 ? make : cuda::MakeCoder{});
        session.add("w", {60, 50});
        session.seal();
        DeviceGradients gradients(model);
        const TestStream stream;
        gradients.upload(Gradients(model), stream);
        const auto steps = [&] {
          for (int step = 0; step < 5; ++step) {
            session.all_reduce(gradients.pointers(), stream);
            session.commit();
            session.synchronize();
          }
        };
        EXPECT_LT(seconds_of([&] { EXPECT_THROW(steps(), Error); }), 10) << "rank " << transport->rank();
        steps();  // as it is from then on
      },
      by_staging);
  EXPECT_EQ(outcomes[0].error, Errc::no_memory);
  EXPECT_TRUE(contains(outcomes[0].message, "rank 0: out of memory")) << outcomes[0].message;
  EXPECT_EQ(outcomes[1].error, Errc::peer_lost) << outcomes[1].message;
}

TEST(CudaSessionMisuse, IsRefusedInWords) {
  const auto transport = alone();
  const Model model = {{"a", {64}, ElementType::f32, Int8{}}, {"b", {64}, ElementType::f32, Int8{}}};
  const auto session = open_device_session(transport, model, two_shot());
  for (const ParameterId id : {0u, 1u}) session->add_bucket(std::vector<ParameterId>{id});
  DeviceGradients gradients(model);
  const TestStream stream;
  gradients.upload(Gradients(model), stream);
  const auto pointer = [&](std::size_t p) { return gradients.pointers().subspan(p, 1); };
  expect_refused(Errc::invalid_argument, "seal", [&] { session->start(0, pointer(0), stream); });
  session->seal();
  expect_refused(Errc::invalid_argument, "sealed", [&] { session->add("c", {3}); });
  expect_refused(Errc::invalid_argument, "no bucket 2", [&] { session->start(2, pointer(0), stream); });
  expect_refused(Errc::invalid_argument, "2 pointers for the 1",
                 [&] { session->start(0, gradients.pointers(), stream); });
  void* nothing = nullptr;
  expect_refused(Errc::invalid_argument, "\"a\" is null", [&] { session->start(0, {&nothing, 1}, stream); });
  std::vector<float> on_host(64);
  void* host = on_host.data();
  expect_refused(Errc::invalid_argument, "\"a\" is not to memory of a device", [&] {
    session->start(0, {&host, 1}, stream);
  });
  expect_refused(Errc::invalid_argument, "1 pointers for 2", [&] { session->all_reduce(pointer(0), stream); });

  cuda::Handle second = session->start(1, pointer(1), stream);
  expect_refused(Errc::invalid_argument, "exchanged after bucket 0", [&] { second.wait(stream); });
  expect_refused(Errc::invalid_argument, "bucket 1 (b) is under way", [&] { session->start(1, pointer(1), stream); });
  cuda::Handle first = session->start(0, pointer(0), stream);
  first.wait(stream);
  expect_refused(Errc::invalid_argument, "bucket 1 (b) was started and not waited for", [&] { session->commit(); });
  second.wait(stream);
  second.wait(stream);
  EXPECT_TRUE(session->commit());
  session->start(0, pointer(0), stream).wait(stream);
  expect_refused(Errc::invalid_argument, "started again", [&] { first.wait(stream); });
  expect_refused(Errc::invalid_argument, "has started", [&] { session->all_reduce(gradients.pointers(), stream); });
  session->commit();
  session->synchronize();
}

TEST_F(CudaSession, BytesOnTheWireAreThoseOfThePlan) {
  run_all_devices(3, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const Model model = small_model();
    const auto session = sealed_device_session(transport, model, two_shot());
    DeviceGradients gradients(model);
    const TestStream stream;
    gradients.upload(Gradients(model), stream);
    for (int step = 0; step < 2; ++step) {
      session->all_reduce(gradients.pointers(), stream);
      session->commit();
    }
    session->synchronize();
    EXPECT_EQ(session->total().calls, 2u);
    EXPECT_EQ(session->total().sent_bytes, 2 * session->bucket_plan(0).wire_bytes(transport->rank()));
    EXPECT_EQ(session->total().gradient_bytes, 2u * (4 * 1200 + 4 * 1000 + 2 * 333));
    EXPECT_TRUE(contains(session->transport(), "nccl 2."));
  });
}

}  // namespace
}  // namespace tightwire::testing::cuda_session_test
