// What a Session on devices saves is what one on hosts does, byte for byte, and either goes on from it.
#include <string>

#include <tightwire/codec.hpp>

#include "device_steps.hpp"
#include "emulated.hpp"

namespace tightwire::testing::cuda_checkpoint_test {
namespace {

using Bytes = std::vector<std::byte>;
constexpr int kRanks = 2;

SessionOptions options() {
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  options.plan.share_elements = 1 << 20;  // a single chunk, as on devices, so that states are alike to the byte
  options.bucket_bytes = 9000;
  return options;
}

/// Steps `from` to `to`, one of them rolled back; what the last one made.
template <class S, class Reduce>
Bytes go_on(S& session, Gradients& gradients, int from, int to, const Reduce& reduce) {
  for (int step = from; step < to; ++step) {
    gradients.fill_wide(Steps::seed(session.rank(), step));
    reduce();
    step % 3 == 1 ? session.rollback() : static_cast<void>(session.commit());
  }
  return gradients.bytes();
}
Bytes on_host(Session& session, const Model& model, int from, int to) {
  Gradients gradients(model);
  return go_on(session, gradients, from, to, [&] { session.all_reduce(gradients.pointers()); });
}
Bytes on_device(cuda::Session& session, const Model& model, int from, int to) {
  Gradients gradients(model);
  DeviceGradients buffers(model);
  const TestStream stream;
  return go_on(session, gradients, from, to, [&] {
    buffers.upload(gradients, stream);
    session.all_reduce(buffers.pointers(), stream);
    buffers.download(gradients, stream);
  });
}

TEST_F(CudaSession, GoesOnFromWhatAHostSavedAndSavesTheSame) {
  use_schedule(1);
  Model model = mixed_model();
  model.push_back({"matrix", {60, 50}, ElementType::f32, parse_codec("powersgd:rank=3,rank=2@3")});
  std::vector<Bytes> states(kRanks), ends(kRanks), results(kRanks);
  run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, options());
    on_host(*session, model, 0, 4);
    states[rank] = session->save();
    results[rank] = on_host(*session, model, 4, 7);
    ends[rank] = session->save();
  });
  SessionOptions device_options = options();
  device_options.plan.share_elements = 0;
  run_all_devices(kRanks, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto rank = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_device_session(transport, model, device_options);
    on_device(*session, model, 0, 4);
    EXPECT_TRUE(without_run(session->save()) == without_run(states[rank]));
    const auto restored = sealed_device_session(transport, model, device_options);
    restored->restore(states[rank]);
    EXPECT_EQ(restored->steps(), 4u);
    EXPECT_TRUE(on_device(*restored, model, 4, 7) == results[rank]);
    EXPECT_TRUE(restored->save() == ends[rank]);
  });
}

TEST_F(CudaSession, RefusesStatesThatDifferAndAmidAStep) {
  use_schedule(0);
  const Model model = {{"a", {300}, ElementType::f32, Int8{}}};
  run_all_devices(kRanks, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model);
    const Bytes before = session->save();
    on_device(*session, model, 0, 1);
    const Bytes after = session->save();
    const auto code = [&](const Bytes& state) {
      try {
        session->restore(state);
      } catch (const Error& error) {
        return error.code();
      }
      return Errc::ok;
    };
    EXPECT_EQ(code(transport->rank() == 0 ? before : after), Errc::mismatch);
    EXPECT_EQ(code(Bytes(100)), Errc::corrupt);
    EXPECT_TRUE(session->save() == after);
    EXPECT_EQ(code(before), Errc::ok);
    EXPECT_EQ(session->steps(), 0u);

    DeviceGradients gradients(model);
    const TestStream stream;
    gradients.upload(Gradients(model), stream);
    session->all_reduce(gradients.pointers(), stream);
    EXPECT_THROW(session->save(), Error);
    session->commit();
    session->synchronize();
  });
}

}  // namespace
}  // namespace tightwire::testing::cuda_checkpoint_test
