// Which parameter gets which codec.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/policy.hpp>

#include "support/ranks.hpp"

namespace tightwire::testing::policy_test {
namespace {

Parameter parameter(const std::string& name, std::vector<std::int64_t> shape, ElementType type = ElementType::f32) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return {name, std::move(shape), type, count};
}
std::string chosen(const Policy& policy, const Parameter& p, const Codec& otherwise = Int8{}) {
  return policy.choose(p, otherwise).spec();
}

TEST(Policy, SmallAndOneDimensionalParametersStayExactByDefault) {
  const Policy policy;
  EXPECT_EQ(chosen(policy, parameter("weight", {64, 64})), "int8:block=256");
  EXPECT_EQ(chosen(policy, parameter("bias", {100000})), "exact");
  EXPECT_EQ(chosen(policy, parameter("scalar", {})), "exact");
  EXPECT_EQ(chosen(policy, parameter("small", {31, 33})), "exact");          // 1023 elements
  EXPECT_EQ(chosen(policy, parameter("just", {32, 32})), "int8:block=256");  // 1024
}

TEST(Policy, TheFirstRuleThatHoldsWins) {
  Policy policy;
  policy.rules = {{.name = "head.*", .codec = Codec{}},
                  {.name = "*.weight", .dimensions = 4, .codec = Int4{}},
                  {.type = ElementType::bf16, .codec = Int8{.block = 64}},
                  {.name = "*bias", .codec = Int4{.block = 32}}};
  EXPECT_EQ(chosen(policy, parameter("head.weight", {8, 8, 8, 8})), "exact");
  EXPECT_EQ(chosen(policy, parameter("body.weight", {8, 8, 8, 8})), "int4:block=64");
  EXPECT_EQ(chosen(policy, parameter("body.weight", {64, 64})), "int8:block=256");
  EXPECT_EQ(chosen(policy, parameter("body.weight", {64, 64}, ElementType::bf16)), "int8:block=64");
  EXPECT_EQ(chosen(policy, parameter("body.bias", {10})), "int4:block=32");  // rules come before the default
}

TEST(Policy, AllConditionsOfARuleMustHold) {
  const Rule rule{.name = "a*", .dimensions = 2, .fewer_than = 100, .type = ElementType::f16};
  EXPECT_TRUE(rule.holds_for(parameter("a", {9, 11}, ElementType::f16)));
  EXPECT_FALSE(rule.holds_for(parameter("b", {9, 11}, ElementType::f16)));
  EXPECT_FALSE(rule.holds_for(parameter("a", {99}, ElementType::f16)));
  EXPECT_FALSE(rule.holds_for(parameter("a", {10, 10}, ElementType::f16)));
  EXPECT_FALSE(rule.holds_for(parameter("a", {9, 11}, ElementType::bf16)));
}

TEST(Policy, Patterns) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("*", "layer.weight"));
  EXPECT_TRUE(matches("layer.?.weight", "layer.7.weight"));
  EXPECT_FALSE(matches("layer.?.weight", "layer.17.weight"));
  EXPECT_TRUE(matches("*.norm*.bias", "block.3.norm1.bias"));
  EXPECT_TRUE(matches("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches("a*b*c", "aXbYbZ"));
  EXPECT_FALSE(matches("", "x"));
  EXPECT_FALSE(matches("weight", "weights"));
  EXPECT_FALSE(matches("weights", "weight"));
  EXPECT_TRUE(matches("**x**", "x"));
  // Not exponential in the number of stars.
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*a*b", std::string(2000, 'a')));
}

TEST(Codec, IsMadeFromText) {
  EXPECT_EQ(parse_codec("exact").spec(), "exact");
  EXPECT_EQ(parse_codec("int8").spec(), "int8:block=256");
  EXPECT_EQ(parse_codec("int4:block=32").spec(), "int4:block=32");
  EXPECT_ERROR(parse_codec("int9"), Errc::invalid_argument, "known are exact, dense, bf16, fp16, int8, int7");
  EXPECT_ERROR(parse_codec(""), Errc::invalid_argument, "not known");
  EXPECT_ERROR(parse_codec("exact:block=64"), Errc::invalid_argument, "exact takes no options");
  EXPECT_ERROR(parse_codec("int8:blocks=64"), Errc::invalid_argument, "unknown option \"blocks=64\"");
  EXPECT_ERROR(parse_codec("int8:block=64x"), Errc::invalid_argument, "not a number");
  EXPECT_ERROR(parse_codec("int8:block="), Errc::invalid_argument, "not a number");
  EXPECT_ERROR(parse_codec("int8:block=40"), Errc::invalid_argument, "multiple of 16");
  EXPECT_ERROR(parse_codec("int8:block=-64"), Errc::invalid_argument, "multiple of 16");
  EXPECT_ERROR(parse_codec("int8:block=99999999999"), Errc::invalid_argument, "not a number");
}

/// Whatever is wrong with an option, of any codec: an error that repeats the specification and says what would do.
TEST(Codec, EveryBadOptionIsNamed) {
  const std::pair<std::string, std::string> bad[] = {
      {"block=", "\"block=\" is not a number of elements"},
      {"block", "\"block\" is not a number of elements"},
      {"block=64.0", "\"block=64.0\" is not a number"},
      {"block= 64", "\"block= 64\" is not a number"},
      {"block=+64", "\" before a + is not known; known is hadamard:<size>"},
      {"block=0", "block must be a multiple of 16 from 16 to 4096, got 0"},
      {"block=-16", "got -16"},
      {"block=24", "got 24"},
      {"block=4112", "got 4112"},
      {"block=99999999999", "is not a number"},
      {"block=64,block=32", "\"block=32\": block is given twice"},
      {"Block=64", "unknown option \"Block=64\"; known: block=<elements>, round=automatic|nearest|stochastic"},
      {"blocks=64", "unknown option \"blocks=64\""},
      {"64", "unknown option \"64\""},
      {"=64", "unknown option \"=64\""},
      {",block=64", "unknown option \"\""},
      {"block=64,,round=nearest", "unknown option \"\""},
      {"", "nothing comes after the \":\""},
      {"block=64,", "nothing comes after the \",\""},
      {"round=", "\"round=\": known are automatic, nearest, stochastic"},
      {"round=up", "\"round=up\": known are automatic, nearest, stochastic"},
      {"round=Nearest", "known are automatic, nearest, stochastic"},
      {"round=nearest,round=stochastic", "\"round=stochastic\": round is given twice"},
      {"seed=7", "unknown option \"seed=7\""}};
  for (const BuiltinCodec& codec : builtin_codecs()) {
    for (const auto& [option, why] : bad) {
      const std::string text = std::string(codec.name) + ":" + option;
      SCOPED_TRACE(text);
      EXPECT_ERROR(parse_codec(text), Errc::invalid_argument, "codec \"" + text + "\": ");
      EXPECT_ERROR(parse_codec(text), Errc::invalid_argument, why);
    }
  }
}

/// Known options that a codec has no use for are refused too.
TEST(Codec, RoundingIsRefusedWhereThereIsNoChoice) {
  std::size_t refused = 0;
  for (const BuiltinCodec& codec : builtin_codecs()) {
    const std::string text = std::string(codec.name) + ":round=stochastic";
    try {
      EXPECT_TRUE(parse_codec(text).coder(ElementType::f32)->stochastic(true)) << text;
    } catch (const Error& error) {
      ++refused;
      EXPECT_TRUE(contains(error.what(), text)) << error.what();
      EXPECT_TRUE(contains(error.what(), std::string(codec.name) + ": has no choice of rounding")) << error.what();
    }
  }
  EXPECT_EQ(refused, 3u + 1u + 14u) << "casts, sign, and codebooks";
}

TEST(Codec, EveryBadOptionOfARotationIsNamed) {
  const std::pair<std::string, std::string> bad[] = {
      {"hadamard:", "nothing comes after the \":\""},
      {"hadamard:32,", "nothing comes after the \",\""},
      {"hadamard:x", "\"x\" is not a number of elements"},
      {"hadamard:size=32", "\"size=32\" is not a number of elements"},
      {"hadamard:0", "size must be a power of two from 32 to 4096, got 0"},
      {"hadamard:-32", "got -32"},
      {"hadamard:48", "got 48"},
      {"hadamard:32,seed", "\"seed\" is not a number"},
      {"hadamard:32,seed=", "\"seed=\" is not a number"},
      {"hadamard:32,seed=-1", "\"seed=-1\" is not a number"},
      {"hadamard:32,seed=99999999999999999999", "is not a number"},
      {"hadamard:32,seed=1,seed=2", "\"seed=1,seed=2\" is not a number"},
      {"hadamard:32,block=64", "unknown option \"block=64\"; known: seed=<number>"}};
  for (const auto& [rotation, why] : bad) {
    const std::string text = rotation + "+int4";
    EXPECT_ERROR(parse_codec(text), Errc::invalid_argument, "codec \"" + text + "\": ");
    EXPECT_ERROR(parse_codec(text), Errc::invalid_argument, why);
  }
}

TEST(Codec, ExactMeansTheElementTypeOfTheBuffer) {
  for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
    EXPECT_TRUE(Codec{}.coder(type)->lossless(type));
    EXPECT_GE(Codec{}.coder(type)->wire_bytes(1000), 1000 * element_bytes(type));
    EXPECT_LT(Codec{}.coder(type)->wire_bytes(1000), 1000 * element_bytes(type) + 16);
  }
}

}  // namespace
}  // namespace tightwire::testing::policy_test
