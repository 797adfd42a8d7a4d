// Capture into CUDA graphs: coders can be captured; Sessions say that they cannot, and leave the capture as it is.
#include <barrier>

#include <tightwire/codec.hpp>

#include "capture.hpp"
#include "device_steps.hpp"
#include "emulated.hpp"
#include "unit/support/small_model.hpp"

namespace tightwire::testing::cuda_capture_test {
namespace {

/// One rank's. What the tests themselves call beside a capture of the other's would spoil it.
void steps_beside_captures(const std::shared_ptr<cuda::Transport>& transport, std::barrier<>& together) {
  const Model model = small_model();
  const auto session = sealed_device_session(transport, model, two_shot());
  DeviceGradients gradients(model);
  const TestStream stream, captured;
  gradients.upload(Gradients(model), stream);
  session->all_reduce(gradients.pointers(), stream);
  session->commit();
  cuda::Handle handle = session->start(0, gradients.pointers(), stream);
  auto another = open_device_session(transport, model, two_shot());
  together.arrive_and_wait();
  {
    Capture capture(captured);
    EXPECT_ERROR(session->start(0, gradients.pointers(), captured), Errc::unsupported, "start: the stream is captured");
    EXPECT_ERROR(session->all_reduce(gradients.pointers(), captured), Errc::unsupported,
                 "all_reduce: the stream is captured");
    EXPECT_ERROR(handle.wait(captured), Errc::unsupported, "wait: the stream is captured");
    handle.wait(stream);
    session->commit();
    session->all_reduce(gradients.pointers(), stream);
    session->commit();
    session->synchronize();
    another->seal();
    another.reset();
    capture.end();
    EXPECT_EQ(capture.size(), 0u);
  }
  together.arrive_and_wait();
  session->all_reduce(gradients.pointers(), captured);
  session->commit();
  session->synchronize();
}

TEST(CudaCapture, SessionsRefuseItAndWorkBesideIt) {
  cuda_emulation::use(cuda_emulation::kSchedules[0]);
  for (const Join& join : {Join(by_nccl), Join(by_staging)}) {
    std::barrier together(2);
    run_all_devices(
        2, [&](const auto& transport) { steps_beside_captures(transport, together); }, join);
  }
}

TEST(CudaCapture, TransportsRefuseIt) {
  for (const Join& join : {Join(by_nccl), Join(by_staging)})
    run_all_devices(
        2,
        [](const std::shared_ptr<cuda::Transport>& transport) {
          const auto channel = transport->open_channel(std::chrono::seconds(5));
          const TestStream stream;
          const Capture capture(stream);
          EXPECT_ERROR(channel->post({}, stream), Errc::unsupported, "a round: the stream is captured");
          EXPECT_NO_THROW(channel->check());
        },
        join);
}

/// Launched a second time, the graph encodes what is in the buffer then, as the host does, and decodes it.
TEST(CudaCapture, CodersCanBeCaptured) {
  cuda_emulation::reset();
  cuda_emulation::options().devices = 1;
  must(cudaSetDevice(0));
  const Model model = {{"a", {3000}, ElementType::f32, Int4{}}};
  const auto coder = cuda::make_coder("int4");
  coder->load();  // which may not be captured
  const auto host = Codec(Int4{}).coder(ElementType::f32);
  Gradients gradients(model), decoded(model);
  DeviceGradients in(model), out(model);
  const TestStream stream;
  void* wire = nullptr;
  must(cudaMalloc(&wire, coder->wire_bytes(3000)));
  out.upload(decoded, stream);
  stream.synchronize();
  Capture capture(stream);
  coder->encode(ElementType::f32,
                {.data = in.pointers()[0], .residual = {}, .count = 3000, .wire = static_cast<std::byte*>(wire)},
                nullptr, stream);
  coder->decode(ElementType::f32, {.wire = static_cast<std::byte*>(wire), .count = 3000, .out = out.pointers()[0]},
                stream);
  cudaGraphExec_t executable = nullptr;
  must(cudaGraphInstantiate(&executable, capture.end(), 0));
  EXPECT_EQ(capture.size(), 2u);
  for (const std::uint64_t seed : {1u, 2u}) {
    gradients.fill_bell(seed);
    in.upload(gradients, stream);
    must(cudaGraphLaunch(executable, stream));
    out.download(decoded, stream);
    std::vector<std::byte> expected(host->wire_bytes(3000)), got(expected.size());
    host->encode(ElementType::f32,
                 {.data = gradients.pointers()[0], .residual = {}, .count = 3000, .wire = expected.data()});
    must(cudaMemcpy(got.data(), wire, got.size(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(got, expected);
    host->decode(ElementType::f32, {.wire = expected.data(), .count = 3000, .out = gradients.pointers()[0]});
    EXPECT_EQ(decoded.bytes(), gradients.bytes());
  }
  must(cudaGraphExecDestroy(executable));
  cudaFree(wire);
}

}  // namespace
}  // namespace tightwire::testing::cuda_capture_test
