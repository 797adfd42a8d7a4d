#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tightwire/cuda.hpp>
#include <tightwire/testing/calls.hpp>

#include "execution.hpp"

namespace tightwire::testing {

inline void expect_success(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

/// Memory of a device that begins `misalignment` bytes after an aligned address.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t size, std::size_t misalignment = 0) : size_(size), misalignment_(misalignment) {
    if (size != 0) expect_success(cudaMalloc(&memory_, size + misalignment));
  }
  explicit DeviceBytes(std::span<const std::byte> content, std::size_t misalignment = 0)
      : DeviceBytes(content.size(), misalignment) {
    if (size_ != 0) expect_success(cudaMemcpy(data(), content.data(), size_, cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { cudaFree(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::byte* data() { return memory_ == nullptr ? nullptr : static_cast<std::byte*>(memory_) + misalignment_; }
  float* floats() { return reinterpret_cast<float*>(data()); }
  std::vector<std::byte> bytes() {
    std::vector<std::byte> bytes(size_);
    if (size_ != 0) expect_success(cudaMemcpy(bytes.data(), data(), size_, cudaMemcpyDeviceToHost));
    return bytes;
  }
  std::vector<float> values() { return from_buffer(ElementType::f32, bytes()); }

 private:
  void* memory_ = nullptr;
  std::size_t size_;
  std::size_t misalignment_;
};

/// How a call is made: where buffers begin, and whether residuals are updated where they are.
struct Manner {
  std::size_t misalignment = 0;
  bool in_place = false;
};
struct DeviceResidual {
  DeviceBytes before, after;
  bool in_place;
  bool given;
  DeviceResidual(const std::optional<std::vector<float>>& values, const Manner& manner)
      : before(values ? as_bytes(*values) : std::span<const std::byte>{}, manner.misalignment / 4 * 4),
        after(values && !manner.in_place ? 4 * values->size() : 0, manner.misalignment / 4 * 4),
        in_place(manner.in_place),
        given(values.has_value()) {}
  Residual pointers() { return given ? Residual{before.floats(), (in_place ? before : after).floats()} : Residual{}; }
  std::vector<float> values() { return (in_place ? before : after).values(); }
};

inline EncodeOutput encode(const cuda::Coder& coder, ElementType type, std::span<const float> x,
                           const std::optional<std::vector<float>>& residual = std::nullopt,
                           const Noise* noise = nullptr, const Manner& manner = {}) {
  DeviceBytes data(to_buffer(type, x), manner.misalignment), wire(coder.wire_bytes(x.size()), manner.misalignment);
  DeviceBytes count(std::vector<std::byte>(8));
  DeviceResidual kept(residual, manner);
  tightwire::Coder::Encode job{data.data(), kept.pointers(), x.size(), wire.data()};
  job.noise = noise;
  coder.encode(type, job, reinterpret_cast<std::uint64_t*>(count.data()), nullptr);
  EncodeOutput output;
  output.wire = wire.bytes();
  if (residual) output.residual = kept.values();
  std::memcpy(&output.nonfinite, count.bytes().data(), 8);
  return output;
}

inline std::vector<float> decode(const cuda::Coder& coder, ElementType type, std::span<const std::byte> wire,
                                 std::size_t count, const Manner& manner = {}) {
  DeviceBytes from(wire, manner.misalignment), out(count * element_bytes(type), manner.misalignment);
  coder.decode(type, {from.data(), count, out.data()}, nullptr);
  return from_buffer(type, out.bytes());
}

inline CombineOutput combine(const cuda::Coder& coder, const CombineInput& input,
                             const std::vector<std::vector<std::byte>>& wires, const Manner& manner = {}) {
  const std::vector<float>& own = input.contributions[input.own];
  DeviceBytes data(to_buffer(input.type, own), manner.misalignment);
  DeviceBytes separate(manner.in_place ? 0 : own.size() * element_bytes(input.type), manner.misalignment);
  DeviceBytes& out = manner.in_place ? data : separate;
  std::vector<std::unique_ptr<DeviceBytes>> received;
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < wires.size(); ++rank) {
    received.push_back(std::make_unique<DeviceBytes>(wires[rank], manner.misalignment));
    sources.push_back(rank == input.own ? nullptr : received.back()->data());
  }
  DeviceBytes wire(input.encoded ? coder.wire_bytes(own.size()) : 0, manner.misalignment);
  DeviceBytes met(std::vector<std::byte>(sizeof(tightwire::Coder::NonFinite)));
  DeviceResidual sender(input.sender, manner);
  DeviceResidual owner(input.encoded ? input.owner : std::nullopt, manner);
  tightwire::Coder::Combine job{sources,    data.data(),   sender.pointers(), owner.pointers(),
                                own.size(), input.divisor, wire.data(),       out.data()};
  job.sender_noise = input.sender_noise;
  job.owner_noise = input.owner_noise;
  coder.combine(input.type, job, reinterpret_cast<tightwire::Coder::NonFinite*>(met.data()), nullptr);
  CombineOutput output;
  output.wire = wire.bytes();
  output.out = from_buffer(input.type, out.bytes());
  if (sender.given) output.sender = sender.values();
  if (owner.given) output.owner = owner.values();
  std::memcpy(&output.nonfinite, met.bytes().data(), sizeof output.nonfinite);
  return output;
}

}  // namespace tightwire::testing
