// Decoders are total: a million payloads per codec, each a valid one with some bytes
// changed, in buffers of their exact size so that a sanitizer sees the first byte beside them. Every instruction set
// gives the same.
#include <gtest/gtest.h>

#include <cctype>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/testing/calls.hpp>

namespace tightwire::testing {
namespace {

constexpr std::size_t kPayloads = 1'000'000;

std::vector<std::string> specs() {
  std::vector<std::string> all;
  for (const BuiltinCodec& codec : builtin_codecs()) all.emplace_back(codec.name);
  all.emplace_back("hadamard:32+int4:block=32");
  return all;
}

class MutatedPayloads : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Codecs, MutatedPayloads, ::testing::ValuesIn(specs()), [](const auto& codec) {
  std::string name = codec.param.substr(0, codec.param.find("+"));
  for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
  return name;
});

TEST_P(MutatedPayloads, Decode) {
  const std::string name = GetParam().substr(GetParam().find('+') + 1);
  std::vector<std::shared_ptr<const Coder>> coders = {parse_codec(GetParam()).coder(ElementType::f32)};
  for (const BuiltinCodec& codec : builtin_codecs())
    for (const host::Level level : levels())
      if (codec.name == name) coders.push_back(codec.make({}, level));
  Random random(91);
  constexpr std::size_t kCounts[] = {1, 19, 48, 100};
  for (const std::size_t count : kCounts) {
    const std::vector<std::byte> valid = encode(*coders[0], ElementType::f32, random.gaussian(count)).wire;
    ExactBytes wire(valid), out(count * sizeof(float)), sum(valid.size()), result(count * sizeof(float));
    for (std::size_t payload = 0; payload < kPayloads / std::size(kCounts); ++payload) {
      if (payload % 8 == 0) std::memcpy(wire.data(), valid.data(), valid.size());
      for (std::size_t change = random.below(3); change < 3; ++change)
        wire.data()[random.below(wire.size())] = static_cast<std::byte>(random.bits());
      const Coder& coder = *coders[payload % coders.size()];
      coder.decode(ElementType::f32, {wire.data(), count, out.data()});
      if (payload % 16 != 0) continue;
      for (const auto& other : coders) {
        other->decode(ElementType::f32, {wire.data(), count, result.data()});
        ASSERT_TRUE(same_bytes(result.bytes(), out.bytes())) << "payload " << payload << " of " << count;
      }
      const std::byte* sources[2] = {wire.data(), wire.data()};
      coder.combine(ElementType::f32, {sources, nullptr, {}, {}, count, 2, sum.data(), result.data()});
    }
  }
}

}  // namespace
}  // namespace tightwire::testing
