// A codec of one's own on a GPU: the same type as on the CPU (own_codec.cpp), and one header more.
#include <tightwire/codec/stat.hpp>
#include <tightwire/cuda/coder.cuh>

#include <iostream>
#include <vector>

struct ThreeLevels {
  static constexpr std::string_view name = "three_levels";
  static constexpr int bits = 4;
  static constexpr float accuracy = 0.8f;
  int block = 64;
  using Stat = tightwire::AbsMax;
  using Param = float;
  using Scale = float;
  TIGHTWIRE_HD static Param param(Stat stat) {
    return stat.finite() ? stat.value() : tightwire::detail::from_bits(0x7fc00000u);
  }
  TIGHTWIRE_HD static Scale scale(Param param) { return param; }
  TIGHTWIRE_HD static int code(float x, Scale s) { return x > 0.5f * s ? 1 : x < -0.5f * s ? -1 : 0; }
  TIGHTWIRE_HD static float value(int code, Scale s) { return static_cast<float>(code) * s; }
  static constexpr bool lossless(tightwire::ElementType) { return false; }
};

int main() {
  const tightwire::cuda::Devices devices = tightwire::cuda::devices();
  if (devices.count == 0) return std::cout << "nothing to show: " << devices.note << '\n', 0;
  const tightwire::cuda::DeviceCoder coder(ThreeLevels{});
  std::vector<float> gradient(1024, 0.25f);
  gradient[0] = 1.0f;
  void *data = nullptr, *wire = nullptr;
  cudaMalloc(&data, 4 * gradient.size());
  cudaMalloc(&wire, coder.wire_bytes(gradient.size()));
  cudaMemcpy(data, gradient.data(), 4 * gradient.size(), cudaMemcpyHostToDevice);
  auto* const bytes = static_cast<std::byte*>(wire);
  coder.encode(tightwire::ElementType::f32, {data, {}, gradient.size(), bytes}, nullptr, nullptr);
  coder.decode(tightwire::ElementType::f32, {bytes, gradient.size(), data}, nullptr);
  cudaMemcpy(gradient.data(), data, 4 * gradient.size(), cudaMemcpyDeviceToHost);
  std::cout << coder.spec() << ": 1 became " << gradient[0] << ", 0.25 beside it " << gradient[1] << '\n';
}
