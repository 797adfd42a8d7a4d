// Every kernel against the bandwidth of a copy from device memory to device memory, which is the most that a kernel
// bound by memory can have. Needs a device.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/cuda.hpp>

namespace {

using namespace tightwire;

constexpr std::size_t kElements = std::size_t{1} << 26;
constexpr std::size_t kRanks = 8;
constexpr int kRepetitions = 20;

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) { check(cudaMalloc(&memory_, bytes), "cudaMalloc"); }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* bytes() { return static_cast<std::byte*>(memory_); }
  float* floats() { return static_cast<float*>(memory_); }

 private:
  void* memory_ = nullptr;
};

/// Seconds of the median of several runs.
double seconds(const std::function<void()>& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  for (int i = 0; i < 3; ++i) work();
  std::vector<float> times;
  for (int i = 0; i < kRepetitions; ++i) {
    check(cudaEventRecord(begin), "cudaEventRecord");
    work();
    check(cudaEventRecord(end), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e-3;
}

struct Buffers {
  DeviceMemory data{4 * kElements}, before{4 * kElements}, after{4 * kElements}, out{4 * kElements};

  Buffers() {
    std::mt19937 random(1);
    std::normal_distribution<float> gaussian;
    std::vector<float> x(kElements);
    for (float& element : x) element = gaussian(random);
    check(cudaMemcpy(data.bytes(), x.data(), 4 * kElements, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemset(before.bytes(), 0, 4 * kElements), "cudaMemset");
  }
};

void print(const std::string& name, double bytes, double time, double copy) {
  const double bandwidth = bytes / time * 1e-9;
  std::printf("  %-34s %8.1f us %8.1f GB/s %5.0f %% of a copy\n", name.c_str(), time * 1e6, bandwidth,
              100 * bandwidth / copy);
}

void measure(const std::string& spec, Buffers& buffers, double copy) {
  const auto coder = cuda::make_coder(spec);
  const std::size_t wire_bytes = coder->wire_bytes(kElements);
  const auto wire_size = static_cast<double>(wire_bytes);
  constexpr auto kFloats = 4.0 * static_cast<double>(kElements);
  DeviceMemory wire(wire_bytes), result(wire_bytes);
  const auto encode = [&] {
    coder->encode(ElementType::f32,
                  {buffers.data.bytes(), {buffers.before.floats(), buffers.after.floats()}, kElements, wire.bytes()},
                  nullptr, nullptr);
  };
  std::printf("%s\n", coder->spec().c_str());
  print("encode with feedback", 3 * kFloats + wire_size, seconds(encode), copy);
  std::vector<const std::byte*> sources(kRanks, wire.bytes());
  sources[0] = nullptr;
  const auto combine = [&] {
    coder->combine(ElementType::f32,
                   {sources,
                    buffers.data.bytes(),
                    {},
                    {buffers.before.floats(), buffers.after.floats()},
                    kElements,
                    static_cast<float>(kRanks),
                    result.bytes(),
                    buffers.out.bytes()},
                   nullptr, nullptr);
  };
  // The sources are all the same bytes, some of which the cache has: no less than memory has to give.
  print("combine of " + std::to_string(kRanks) + " with feedback", 4 * kFloats + (1 + 1) * wire_size, seconds(combine),
        copy);
  const auto decode = [&] { coder->decode(ElementType::f32, {wire.bytes(), kElements, buffers.out.bytes()}, nullptr); };
  print("decode", kFloats + wire_size, seconds(decode), copy);
}

int run(const std::vector<std::string>& specs) {
  const cuda::Devices devices = cuda::devices();
  std::printf("devices: %s\n", devices.note.c_str());
  if (devices.count == 0) return 77;  // as skipped tests end
  Buffers buffers;
  const double time = seconds([&] {
    check(cudaMemcpyAsync(buffers.out.bytes(), buffers.data.bytes(), 4 * kElements, cudaMemcpyDeviceToDevice),
          "a copy");
  });
  const double copy = 8.0 * static_cast<double>(kElements) / time * 1e-9;
  std::printf("copy of %zu MiB on the device: %.1f GB/s, read and written\n", 4 * kElements >> 20, copy);
  for (const std::string& spec : specs) measure(spec, buffers, copy);
  return 0;
}

}  // namespace

int main(int count, char** values) {
  try {
    std::vector<std::string> specs(values + 1, values + count);
    if (specs.empty())
      for (const BuiltinCodec& codec : builtin_codecs()) specs.emplace_back(codec.name);
    if (count == 1) specs.emplace_back("hadamard:32+int4:block=32");
    return run(specs);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_kernel_bench: %s\n", error.what());
    return 1;
  }
}
