// A codec of one's own (three_levels.hpp) on a GPU: one header more than on the CPU.
#include <tightwire/cuda/coder.cuh>

#include <iostream>
#include <stdexcept>
#include <vector>

#include "three_levels.hpp"

void must(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

int main() {
  const tightwire::cuda::Devices devices = tightwire::cuda::devices();
  if (devices.count == 0) return std::cout << "nothing to show: " << devices.note << '\n', 0;
  const tightwire::cuda::DeviceCoder coder(ThreeLevels{});
  std::vector<float> gradient(1024, 0.25f);
  gradient[0] = 1.0f;
  void *data = nullptr, *wire = nullptr;
  must(cudaMalloc(&data, 4 * gradient.size()));
  must(cudaMalloc(&wire, coder.wire_bytes(gradient.size())));
  must(cudaMemcpy(data, gradient.data(), 4 * gradient.size(), cudaMemcpyHostToDevice));
  auto* const bytes = static_cast<std::byte*>(wire);
  coder.encode(tightwire::ElementType::f32, {data, {}, gradient.size(), bytes}, nullptr, nullptr);
  coder.decode(tightwire::ElementType::f32, {bytes, gradient.size(), data}, nullptr);
  must(cudaMemcpy(gradient.data(), data, 4 * gradient.size(), cudaMemcpyDeviceToHost));
  std::cout << coder.spec() << ": 1 became " << gradient[0] << ", 0.25 beside it " << gradient[1] << '\n';
}
