#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "device_ranks.hpp"

namespace tightwire::testing {

/// A capture of a stream, which must end well. In the mode in which CUDA minds the calls of all threads.
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

}  // namespace tightwire::testing
