// Which parameter gets which codec.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/policy.hpp>

#include "support/ranks.hpp"

namespace tightwire::testing {
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

TEST(Codec, ExactMeansTheElementTypeOfTheBuffer) {
  for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
    EXPECT_TRUE(Codec{}.coder(type)->lossless(type));
    EXPECT_GE(Codec{}.coder(type)->wire_bytes(1000), 1000 * element_bytes(type));
    EXPECT_LT(Codec{}.coder(type)->wire_bytes(1000), 1000 * element_bytes(type) + 16);
  }
}

}  // namespace
}  // namespace tightwire::testing
