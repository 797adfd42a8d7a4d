// The bytes of every format as tests/golden/ has them, which the host is held to as well.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <tightwire/core_codecs.hpp>

#include "device_calls.hpp"

namespace tightwire::testing {
namespace {

using GoldenFiles = OnDevice;

std::vector<std::byte> read(const std::string& name) {
  std::ifstream file(std::filesystem::path(TIGHTWIRE_GOLDEN) / name, std::ios::binary);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}
std::string file_name(std::string spec) {
  for (char& letter : spec)
    if (letter == ':' || letter == '=' || letter == ',' || letter == '+') letter = '_';
  return spec;
}

TEST_F(GoldenFiles, EveryCodecEncodesAndDecodesTheSameBytes) {
  const std::vector<float> x = from_buffer(ElementType::f32, read("input.f32"));
  ASSERT_EQ(x.size(), 333u);
  std::vector<std::string> specs;
  for (const BuiltinCodec& codec : builtin_codecs()) specs.emplace_back(codec.name);
  for (const char* more : {"int4:block=32", "nvfp4:block=64", "hadamard:32+int4:block=32", "hadamard:256,seed=7+int8"})
    specs.emplace_back(more);
  for (const std::string& spec : specs) {
    const auto coder = cuda::make_coder(spec);
    const std::vector<std::byte> wire = read(file_name(coder->spec()) + ".wire");
    ASSERT_TRUE(same_bytes(encode(*coder, ElementType::f32, x).wire, wire)) << spec;
    ASSERT_TRUE(same_bytes(as_bytes(decode(*coder, ElementType::f32, wire, x.size())),
                           read(file_name(coder->spec()) + ".values.f32")))
        << spec;
  }
}

TEST_F(GoldenFiles, StochasticRounding) {
  const std::vector<float> x = from_buffer(ElementType::f32, read("input.f32"));
  const Noise noise{.seed = 0x0123456789abcdefu, .use = 3, .parameter = 5, .stream = 2, .first = 256};
  for (const char* spec : {"int8", "int4", "int3-affine", "fp8-e4m3", "mxfp4", "nvfp4", "ternary"}) {
    const auto coder = cuda::make_coder(spec);
    ASSERT_TRUE(same_bytes(encode(*coder, ElementType::f32, x, std::nullopt, &noise).wire,
                           read("stochastic_" + file_name(coder->spec()) + ".wire")))
        << spec;
  }
}

}  // namespace
}  // namespace tightwire::testing
