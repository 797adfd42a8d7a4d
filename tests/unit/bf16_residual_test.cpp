// Residuals in bf16: the same bytes on the wire as with those values in fp32, and rounded so that nothing is lost on
// average, the same whatever the cuts and the instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/testing/calls.hpp>

namespace tightwire::testing::bf16_residual {
namespace {

using Halves = std::vector<std::uint16_t>;

Halves halves_of(const std::vector<float>& x) {
  Halves halves;
  for (const float element : x) halves.push_back(detail::to_bf16(element));
  return halves;
}
std::vector<float> floats_of(const Halves& halves) {
  std::vector<float> x;
  for (const std::uint16_t half : halves) x.push_back(detail::from_bf16(half));
  return x;
}
/// What is kept of `residual`, whose first element is number noise.first of its parameter.
Halves kept(const std::vector<float>& residual, const Noise& noise) {
  Halves halves;
  for (std::size_t i = 0; i < residual.size(); ++i)
    halves.push_back(detail::bf16_residual_at(residual[i], noise, noise.first + i));
  return halves;
}

/// Every codec of the library, and rotated ones.
std::vector<std::shared_ptr<const Coder>> coders(host::Level level) {
  std::vector<std::shared_ptr<const Coder>> all;
  CodecSettings rotated;
  rotated.hadamard = 64;
  for (const BuiltinCodec& codec : builtin_codecs()) {
    all.push_back(codec.make({}, level));
    if (codec.name == "int4" || codec.name == "eden2") all.push_back(codec.make(rotated, level));
  }
  return all;
}

struct Buffers {
  ElementType type;
  std::vector<std::byte> data;
  std::vector<float> before;
  std::size_t count;
};
Buffers buffers(ElementType type, std::size_t count, bool finite) {
  std::vector<float> x = Random(count).gaussian(count);
  if (!finite) x[count / 2] = INFINITY, x[count / 3] = NAN;
  return {type, to_buffer(type, x), floats_of(halves_of(Random(count + 1).gaussian(count, 0.02))), count};
}

/// A slice that starts at element noise.first, with residuals in fp32 and in bf16: the same bytes, and what was left.
void check_encode(const Coder& coder, const Buffers& of, const Noise& noise, bool in_place) {
  std::vector<std::byte> expected_wire(coder.wire_bytes(of.count)), wire = expected_wire;
  std::vector<float> after(of.count);
  Halves before = halves_of(of.before), after_bf16(of.count, 0xaaaa);
  const std::uint64_t expected =
      coder.encode(of.type, {of.data.data(), {of.before.data(), after.data()}, of.count, expected_wire.data()});
  Residual residual;
  residual.bf16 = {before.data(), in_place ? before.data() : after_bf16.data(), noise};
  EXPECT_EQ(coder.encode(of.type, {of.data.data(), residual, of.count, wire.data()}), expected);
  ASSERT_TRUE(same_bytes(wire, expected_wire));
  ASSERT_EQ(in_place ? before : after_bf16, kept(after, noise));
  if (in_place) return;
  ASSERT_EQ(before, halves_of(of.before)) << "the old residual was changed";
}

void check_combine(const Coder& coder, const Buffers& of, const Noise& noise) {
  const std::vector<std::byte> other = to_buffer(of.type, Random(of.count + 7).gaussian(of.count));
  std::vector<std::byte> received(coder.wire_bytes(of.count)), out(of.data.size()), expected_out = out;
  std::vector<std::byte> wire = received, expected_wire = received;
  coder.encode(of.type, {other.data(), {}, of.count, received.data()});
  const std::byte* sources[] = {nullptr, received.data()};
  std::vector<float> sender(of.count), owner(of.count);
  Coder::Combine job{sources,
                     of.data.data(),
                     {of.before.data(), sender.data()},
                     {of.before.data(), owner.data()},
                     of.count,
                     2.0f,
                     expected_wire.data(),
                     expected_out.data()};
  const Coder::NonFinite expected = coder.combine(of.type, job);

  Noise of_sum = noise;
  of_sum.stream = 0;
  const Halves before = halves_of(of.before);
  Halves sender_bf16(of.count), owner_bf16(of.count);
  job.sender = job.owner = {};
  job.sender.bf16 = {before.data(), sender_bf16.data(), noise};
  job.owner.bf16 = {before.data(), owner_bf16.data(), of_sum};
  job.wire = wire.data();
  job.out = out.data();
  const Coder::NonFinite met = coder.combine(of.type, job);
  EXPECT_EQ(met.contribution, expected.contribution);
  EXPECT_EQ(met.result, expected.result);
  ASSERT_TRUE(same_bytes(wire, expected_wire));
  ASSERT_TRUE(same_bytes(out, expected_out));
  ASSERT_EQ(sender_bf16, kept(sender, noise)) << "sender";
  ASSERT_EQ(owner_bf16, kept(owner, of_sum)) << "owner";
}

TEST(Bf16Residual, SameBytesAsThoseValuesInFp32AndWhatIsLeftRoundedAsDefined) {
  unsigned turn = 0;
  for (const host::Level level : levels())
    for (const auto& coder : coders(level)) {
      const std::size_t block = coder->block();
      for (const ElementType type : kElementTypes) {
        if (coder->lossless(type)) continue;
        for (const std::size_t count : {std::size_t{1}, block - 1, 3 * block + 5, 4 * block}) {
          SCOPED_TRACE(coder->spec() + " " + std::string(to_string(type)) + " " + std::string(to_string(level)) + " " +
                       std::to_string(count));
          const Noise noise{turn * 12345u, turn, turn % 5, 1 + turn % 3, turn % 7 * 4096 / 2 + turn % 2 * 16};
          const Buffers of = buffers(type, count, count < 3 || turn % 3 != 0);
          check_encode(*coder, of, noise, turn % 2 == 0);
          check_combine(*coder, of, noise);
          ++turn;
          if (HasFailure()) return;
        }
      }
    }
}

TEST(Bf16Residual, CutsChangeNothing) {
  const auto coder = Codec(Int8{.block = 64}).coder(ElementType::f32);
  const Buffers of = buffers(ElementType::f32, 20000, true);
  const auto run = [&](std::size_t slice) {
    const Halves before = halves_of(of.before);
    Halves after(of.count);
    Residual residual;
    residual.bf16 = {before.data(), after.data(), {3, 9, 2, 1, 0}};
    std::vector<std::byte> wire(coder->wire_bytes(of.count));
    for (std::size_t at = 0; at < of.count; at += slice)
      coder->encode(of.type,
                    {of.data.data() + 4 * at, advanced(residual, at), std::min(slice, of.count - at), wire.data()});
    return after;
  };
  const Halves whole = run(of.count);
  for (const std::size_t slice : {64, 704, 4096, 9984}) EXPECT_EQ(run(slice), whole) << slice;
}

TEST(Bf16Residual, LargestAndSmallestStayFiniteAndInRange) {
  for (const int random : {0, 0x8000, 0xffff}) {
    EXPECT_EQ(detail::from_bf16(detail::bf16_residual_bits(0x1.fffffep127f, random)), 0x1.fep127f);
    EXPECT_EQ(detail::from_bf16(detail::bf16_residual_bits(-0x1.fffffep127f, random)), -0x1.fep127f);
    EXPECT_EQ(detail::bf16_residual_bits(-0.0f, random), 0x8000);
    EXPECT_EQ(detail::bf16_residual_bits(0.0f, random), 0);
    EXPECT_EQ(detail::from_bf16(detail::bf16_residual_bits(-1.5f, random)), -1.5f) << "exact stays exact";
    EXPECT_LE(detail::from_bf16(detail::bf16_residual_bits(0x1p-149f, random)), 0x1p-133f);
  }
}

// Hoeffding: the mean of n roundings of one element, each within one unit of the last place, is off by more than
// sqrt(ln(2 / p) / (2 n)) units with a probability below p. p = 1e-9 here; 64 elements.
TEST(Bf16Residual, RoundsUpAsOftenAsItIsNearTheNext) {
  constexpr std::uint32_t kUses = 20000;
  const double off_units = std::sqrt(std::log(2e9) / (2 * kUses));
  for (std::uint64_t element = 0; element < 64; ++element) {
    const float x = (element % 2 == 0 ? 1.0f : -1.0f) * (1.0f + static_cast<float>(element) * 0x1p-13f);
    double sum = 0;
    for (std::uint32_t use = 0; use < kUses; ++use)
      sum += static_cast<double>(detail::from_bf16(detail::bf16_residual_at(x, {1, use, 3, 2, 0}, 77 * element)));
    EXPECT_NEAR(sum / kUses, static_cast<double>(x), off_units * 0x1p-7) << element;
  }
}

}  // namespace
}  // namespace tightwire::testing::bf16_residual
