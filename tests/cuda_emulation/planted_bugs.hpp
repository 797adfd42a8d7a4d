#pragma once
#include <span>
#include <string_view>

#include <driver_types.h>

namespace cuda_emulation {

/// Threads of the one block, and elements of x and y.
inline constexpr int kElements = 256;

/// A kernel y = f(x), as it should be or with a mistake in it.
struct Planted {
  std::string_view name;
  void (*launch)(const float* x, float* y, cudaStream_t stream);
  /// What y[i] should be for x[i] = i + 1.
  float (*expected)(int i);
};
std::span<const Planted> sound_kernels();
std::span<const Planted> faulty_kernels();

}  // namespace cuda_emulation
