// Capture into CUDA graphs: coders can be captured; Sessions say that they cannot, and leave the capture as it is.
#include <tightwire/codec.hpp>

#include "device_steps.hpp"
#include "emulated.hpp"
#include "unit/support/small_model.hpp"

namespace tightwire::testing {
namespace {

/// A capture of a stream, which must end well.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (graph_ == nullptr) {
      EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    }
    cudaGraphDestroy(graph_);
  }
  cudaGraph_t end() {
    must(cudaStreamEndCapture(stream_, &graph_));
    return graph_;
  }
  std::size_t size() const {
    std::size_t nodes = 0;
    must(cudaGraphGetNodes(graph_, nullptr, &nodes));
    return nodes;
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
};

void steps_beside_captures(const std::shared_ptr<cuda::Transport>& transport) {
  const Model model = small_model();
  const auto session = sealed_device_session(transport, model, two_shot());
  DeviceGradients gradients(model);
  const TestStream stream, captured;
  gradients.upload(Gradients(model), stream);
  session->all_reduce(gradients.pointers(), stream);
  session->commit();
  cuda::Handle handle = session->start(0, gradients.pointers(), stream);
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
    capture.end();
    EXPECT_EQ(capture.size(), 0u);
  }
  session->all_reduce(gradients.pointers(), captured);
  session->commit();
  session->synchronize();
}

TEST(CudaCapture, SessionsRefuseItAndWorkBesideIt) {
  cuda_emulation::use(cuda_emulation::kSchedules[0]);
  for (const Join& join : {Join(by_nccl), Join(by_staging)}) run_all_devices(2, steps_beside_captures, join);
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
}  // namespace tightwire::testing
