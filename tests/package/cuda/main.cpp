// Without a header of CUDA's, and on a machine that may have no device.
#include <tightwire/cuda.hpp>

#include <cstdio>

int main() {
  const auto coder = tightwire::cuda::make_coder("int4:block=64");
  std::printf("%s, %s\n", coder->spec().c_str(), tightwire::cuda::devices().note.c_str());
  return coder->wire_bytes(64) == 48 ? 0 : 1;
}
