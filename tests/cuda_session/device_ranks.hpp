#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/cuda_session.hpp>

#include "cuda/execution.hpp"
#include "joining.hpp"
#include "unit/support/model.hpp"
#include "unit/support/ranks.hpp"

namespace tightwire::testing {

inline void must(cudaError_t status) {
  if (status != cudaSuccess) throw Error(Errc::internal, std::string("test: ") + cudaGetErrorString(status));
}

class CudaSession : public OnDevice {};

/// How ranks come from a transport of the host's to one between devices.
using Join = std::function<std::shared_ptr<cuda::Transport>(const std::shared_ptr<Transport>& host)>;
inline std::shared_ptr<cuda::Transport> by_nccl(const std::shared_ptr<Transport>& host) {
  return join_devices(*host, std::chrono::seconds(20));
}
inline std::shared_ptr<cuda::Transport> by_staging(const std::shared_ptr<Transport>& host) {
  return cuda::staged(host, std::chrono::seconds(20));
}

/// Ranks as threads, each with a device of its own.
using DeviceBody = std::function<void(const std::shared_ptr<cuda::Transport>&)>;
inline std::vector<Outcome> run_each_device(const Transports& hosts, const DeviceBody& body,
                                            const Join& join = by_nccl) {
  prepare_devices(static_cast<int>(hosts.size()));
  std::vector<Outcome> outcomes = run_each(hosts, [&](const std::shared_ptr<Transport>& host) {
    must(cudaSetDevice(host->rank()));
    body(join(host));
  });
  expect_nothing_left();
  return outcomes;
}
inline std::vector<Outcome> run_each_device(int ranks, const DeviceBody& body, const Join& join = by_nccl) {
  return run_each_device(local::make(ranks), body, join);
}
inline void run_all_devices(int ranks, const DeviceBody& body, const Join& join = by_nccl) {
  const std::vector<Outcome> outcomes = run_each_device(ranks, body, join);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_FALSE(outcomes[rank].error) << "rank " << rank << ": " << outcomes[rank].message << "; " << last_words();
}

class TestStream {
 public:
  TestStream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { must(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Buffers on the device as large as a rank's gradients with their guards; in one allocation, since the emulation takes
/// its time over each.
class DeviceGradients {
 public:
  explicit DeviceGradients(const Model& model) {
    std::vector<std::size_t> places;
    std::size_t all = 0;
    for (const Tensor& tensor : model) {
      sizes_.push_back(Gradients(Model{tensor}).bytes().size());
      places.push_back(all);
      all += (sizes_.back() + 255) / 256 * 256;
    }
    must(cudaMalloc(&memory_, all));
    for (const std::size_t place : places) pointers_.push_back(static_cast<std::byte*>(memory_) + place);
  }
  ~DeviceGradients() { cudaFree(memory_); }
  DeviceGradients(const DeviceGradients&) = delete;
  DeviceGradients& operator=(const DeviceGradients&) = delete;

  void upload(const Gradients& gradients, cudaStream_t stream) {
    for (std::size_t p = 0; p < sizes_.size(); ++p)
      must(cudaMemcpyAsync(pointers_[p], gradients.pointers()[p], sizes_[p], cudaMemcpyHostToDevice, stream));
  }
  /// Waits for the stream.
  void download(Gradients& gradients, cudaStream_t stream) const {
    for (std::size_t p = 0; p < sizes_.size(); ++p)
      must(cudaMemcpyAsync(gradients.pointers()[p], pointers_[p], sizes_[p], cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
  }
  std::span<void* const> pointers() const { return pointers_; }

 private:
  void* memory_ = nullptr;
  std::vector<std::size_t> sizes_;
  std::vector<void*> pointers_;
};

inline std::unique_ptr<cuda::Session> open_device_session(std::shared_ptr<cuda::Transport> transport,
                                                          const Model& model, SessionOptions options = {}) {
  options.policy.exact_by_default = {};
  for (const Tensor& tensor : model) options.policy.rules.push_back({.name = tensor.name, .codec = tensor.codec});
  auto session = std::make_unique<cuda::Session>(std::move(transport), std::move(options));
  for (const Tensor& tensor : model) session->add(tensor.name, tensor.shape, tensor.type);
  return session;
}
inline std::unique_ptr<cuda::Session> sealed_device_session(std::shared_ptr<cuda::Transport> transport,
                                                            const Model& model, SessionOptions options = {}) {
  auto session = open_device_session(std::move(transport), model, std::move(options));
  session->seal();
  return session;
}

}  // namespace tightwire::testing
