// What the interface promises beside its bytes: refusals in words, errors that name the call, and calls that wait for
// nothing.
#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "device_calls.hpp"
#include "runtime/options.hpp"

namespace tightwire::testing {
namespace {

template <class Call>
std::string refusal(Errc code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(CudaInterface, RefusesWhatTheHostRefuses) {
  EXPECT_NE(refusal(Errc::invalid_argument, [] { cuda::make_coder("int9"); }).find("int9"), std::string::npos);
  EXPECT_NE(refusal(Errc::invalid_argument, [] { cuda::make_coder("int8:block=24"); }).find("got 24"),
            std::string::npos);
  EXPECT_NE(refusal(Errc::invalid_argument, [] { cuda::make_coder("hadamard:48+int8"); }).find("got 48"),
            std::string::npos);
  refusal(Errc::invalid_argument, [] { cuda::make_coder("exact"); });
  refusal(Errc::unsupported, [] { cuda::make_coder("topk:ratio=0.01"); });
}

TEST(CudaInterface, ACodecIsTheSameOnADevice) {
  EXPECT_EQ(cuda::make_coder(Codec{}, ElementType::bf16)->spec(), "bf16:block=256");
  const auto coder =
      cuda::make_coder(parse_codec("hadamard:64,seed=3+int4:block=32,round=stochastic"), ElementType::f32);
  EXPECT_EQ(coder->spec(), "hadamard:64,seed=3+int4:block=32,round=stochastic");
  EXPECT_EQ(coder->block(), 64u);
  EXPECT_TRUE(coder->stochastic(true));
  EXPECT_FALSE(coder->lossless(ElementType::f32));
  EXPECT_TRUE(cuda::make_coder("dense")->lossless(ElementType::f32));
}

TEST(CudaInterface, RefusesMoreContributionsThanAKernelTakes) {
  const std::vector<const std::byte*> sources(129);
  const std::string why = refusal(Errc::unsupported, [&] {
    cuda::make_coder("int8")->combine(ElementType::f32, {sources, nullptr, {}, {}, 1, 1.0f, nullptr, nullptr}, nullptr,
                                      nullptr);
  });
  EXPECT_NE(why.find("129"), std::string::npos) << why;
}

TEST(CudaInterface, AFailedCallIsNamed) {
  cuda_emulation::reset();
  DeviceBytes wire(64), out(64);
  cuda_emulation::set_sticky_error(cudaErrorIllegalAddress);
  const std::string why = refusal(Errc::device, [&] {
    cuda::make_coder("int8")->decode(ElementType::f32, {wire.data(), 16, out.data()}, nullptr);
  });
  cuda_emulation::reset();
  EXPECT_NE(why.find("cudaGetDevice for decode with int8: cudaErrorIllegalAddress (700)"), std::string::npos) << why;
}

/// The emulation does work when something waits for it: what a call waited for would be there.
TEST(CudaInterface, CallsReturnBeforeKernelsRun) {
  cuda_emulation::reset();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const std::vector<float> x(256, 1.5f);
  const auto coder = cuda::make_coder("dense");
  DeviceBytes data(as_bytes(x)), wire(coder->wire_bytes(x.size())), out(4 * x.size());
  coder->encode(ElementType::f32, {data.data(), {}, x.size(), wire.data()}, nullptr, stream);
  coder->decode(ElementType::f32, {wire.data(), x.size(), out.data()}, stream);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << cuda_emulation::last_report();
  EXPECT_TRUE(same_bits(out.values(), x));
}

/// Blocks of 64 take more shared memory than those of 4096, and both take more than a kernel has unless it asks.
TEST(CudaInterface, NoLaunchTakesSharedMemoryFromAnotherThreads) {
  cuda_emulation::reset();
  const std::vector<float> x(4096, 1.5f);
  DeviceBytes data(as_bytes(x));
  for (const char* spec : {"hadamard:4096+dense:block=64", "hadamard:4096+dense:block=4096"}) {
    const auto coder = cuda::make_coder(spec);
    DeviceBytes wire(coder->wire_bytes(x.size()));
    coder->encode(ElementType::f32, {data.data(), {}, x.size(), wire.data()}, nullptr, nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  EXPECT_EQ(cuda_emulation::last_report(), "");
}

TEST(CudaInterface, NoElementsNeedNoKernel) {
  cuda_emulation::reset();
  const auto coder = cuda::make_coder("int8");
  EXPECT_EQ(coder->wire_bytes(0), 0u);
  coder->encode(ElementType::f32, {nullptr, {}, 0, nullptr}, nullptr, nullptr);
  coder->decode(ElementType::f32, {nullptr, 0, nullptr}, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace tightwire::testing
