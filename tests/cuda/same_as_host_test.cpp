// Bytes, residuals, outputs and counts of a device are those of the host, bit for bit, for every codec.
#include <string>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "comparisons.hpp"

namespace tightwire::testing {
namespace {

using SameAsHost = OnDevice;

Both both_of(const std::string& spec) { return {parse_codec(spec).coder(ElementType::f32), cuda::make_coder(spec)}; }
std::vector<std::string> all_codecs() {
  std::vector<std::string> specs;
  for (const BuiltinCodec& codec : builtin_codecs()) specs.emplace_back(codec.name);
  return specs;
}

TEST_F(SameAsHost, EveryCodecAtEverySize) {
  std::size_t number = 0;
  for (const std::string& spec : all_codecs()) ASSERT_NO_FATAL_FAILURE(expect_same(both_of(spec), number++));
}

TEST_F(SameAsHost, BlocksOfAnySize) {
  std::size_t number = 0;
  for (const char* spec : {"int8:block=16", "int4:block=48", "int3:block=80", "int8:block=4080", "int4:block=4096",
                           "nvfp4:block=16", "nvfp4:block=48", "lloyd3:block=112", "int5-affine:block=208",
                           "sign:block=16", "fp8-e4m3:block=1024", "mxfp4:block=64"})
    ASSERT_NO_FATAL_FAILURE(expect_same(both_of(spec), number++));
}

TEST_F(SameAsHost, Rotated) {
  std::size_t number = 0;
  for (const char* spec : {"hadamard:32+int4:block=32", "hadamard:256,seed=7+int8", "hadamard:4096+lloyd4",
                           "hadamard:1024,seed=81985529216486895+eden2", "hadamard:64+nvfp4", "hadamard:128+dense",
                           "hadamard:32+sign:block=64", "hadamard:512+bf16"})
    ASSERT_NO_FATAL_FAILURE(expect_same(both_of(spec), number++));
}

/// Every type, with and without everything, for codecs of each kind.
TEST_F(SameAsHost, EveryTypeAndMannerForCodecsOfEachKind) {
  for (const char* spec :
       {"int8", "int3", "nvfp4", "lloyd2", "int4-affine", "bf16", "fp16", "dense", "hadamard:64+int4"}) {
    const Both both = both_of(spec);
    for (const ElementType type : kElementTypes)
      for (unsigned bits = 0; bits < 16; ++bits) {
        const Case c{.type = type,
                     .count = both.block + 21,
                     .non_finite = (bits & 1u) != 0,
                     .feedback = (bits & 2u) != 0,
                     .noisy = (bits & 4u) != 0,
                     .manner = {.misalignment = (bits & 8u) != 0 ? std::size_t{4} : 0, .in_place = (bits & 8u) != 0}};
        SCOPED_TRACE(spec + (": " + c.text()));
        use_schedule(bits % schedules().size());
        ASSERT_NO_FATAL_FAILURE(expect_same_encoded(both, c, elements(c.count, both.block, c.non_finite, bits)));
        for (const bool encoded : {false, true})
          ASSERT_NO_FATAL_FAILURE(expect_same_combined(both, c, 1, encoded, bits % 2 == 0 ? 2.0f : 3.0f));
      }
  }
}

/// A kernel that depends on an order of threads would show it here.
TEST_F(SameAsHost, UnderEverySchedule) {
  for (const char* spec : {"int8", "nvfp4", "eden3", "hadamard:128+int4", "int6-affine", "qsgd4"}) {
    const Both both = both_of(spec);
    for (std::size_t schedule = 0; schedule < schedules().size(); ++schedule) {
      SCOPED_TRACE(std::string(spec) + " " + schedules()[schedule]);
      use_schedule(schedule);
      const Case c{.count = 2 * both.block + 1030, .feedback = true, .noisy = true, .manner = {}};
      ASSERT_NO_FATAL_FAILURE(expect_same_encoded(both, c, elements(c.count, both.block, false, schedule)));
      ASSERT_NO_FATAL_FAILURE(expect_same_combined(both, c, 2, true, 3.0f));
    }
  }
}

/// Bytes that no encoder made give a value or a NaN, the same bits as on the host.
TEST_F(SameAsHost, AnyBytesDecode) {
  for (const std::string& spec : all_codecs()) {
    const Both both = both_of(spec);
    const std::size_t count = 2 * both.block + 13;
    Random random(count);
    std::vector<std::byte> wire(both.host->wire_bytes(count));
    for (std::byte& byte : wire) byte = static_cast<std::byte>(random.bits());
    const std::vector<float> expected = decode(*both.host, ElementType::f32, wire, count);
    ASSERT_TRUE(same_bits(decode(*both.device, ElementType::f32, wire, count), expected)) << spec;
  }
}

/// Many tiles, so that their number and places are right.
TEST_F(SameAsHost, LargeSlices) {
  for (const char* spec : {"int8", "hadamard:64+int4"}) {
    const Both both = both_of(spec);
    const Case c{.count = 100'003, .feedback = true, .manner = {}};
    use_schedule(0);
    ASSERT_NO_FATAL_FAILURE(expect_same_encoded(both, c, elements(c.count, both.block, false, 1))) << spec;
    ASSERT_NO_FATAL_FAILURE(expect_same_combined(both, c, 0, true, 3.0f)) << spec;
  }
}

}  // namespace
}  // namespace tightwire::testing
