// The randomized Hadamard transform before a quantizer, against the slowest possible transform and the plain quantizer.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/host/rotation.hpp>
#include <tightwire/local_transport.hpp>
#include <tightwire/session.hpp>
#include <tightwire/testing/calls.hpp>

namespace tightwire::testing::rotation_test {
namespace {

/// By the definition: y[i] = sum over j of (-1)^popcount(i & j) x[j], in double.
std::vector<double> walsh(std::span<const float> x) {
  std::vector<double> y(x.size(), 0.0);
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < x.size(); ++j)
      y[i] += (std::popcount(i & j) % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(x[j]);
  return y;
}
/// One addition after the other, in the order that the wire format prescribes.
void rotate(std::span<float> x, std::size_t size, std::uint64_t seed, bool forward) {
  for (std::size_t at = 0; x.size() - at >= 16;) {
    const std::size_t count = std::min(size, std::bit_floor(x.size() - at));
    const int k = std::countr_zero(count);
    for (std::size_t i = 0; i < count; ++i) x[at + i] = std::ldexp(x[at + i], -(forward ? (k + 1) / 2 : k / 2));
    const auto turn = [&] {
      for (std::size_t i = 0; i < count; ++i) {
        const auto random =
            detail::Philox::at({static_cast<std::uint32_t>(i / 128), 0, 0, 0}, static_cast<std::uint32_t>(seed),
                               static_cast<std::uint32_t>(seed >> 32));
        const bool set = (random.words[i / 32 % 4] >> i % 32 & 1u) != 0;
        x[at + i] *= set ? -1.0f : 1.0f;
      }
    };
    if (forward) turn();
    for (std::size_t stride = 1; stride < count; stride *= 2)
      for (std::size_t i = 0; i < count; ++i) {
        if ((i & stride) != 0) continue;
        float &a = x[at + i], &b = x[at + i + stride];
        const float sum = a + b, difference = a - b;
        a = sum, b = difference;
      }
    if (!forward) turn();
    at += count;
  }
}

TEST(WalshHadamard, IsTheTransformOfItsDefinition) {
  for (const std::size_t count : {16u, 32u, 128u, 1024u}) {
    std::vector<float> x = Random(count).gaussian(count);
    const std::vector<double> expected = walsh(x);
    detail::walsh_hadamard<4>(x.data(), count, [](std::size_t, const auto&) {});
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_NEAR(x[i], expected[i], 1e-5 * std::sqrt(static_cast<double>(count))) << count << " element " << i;
  }
}

TEST(Rotation, IsTheSameAtEveryLevelAndComesBack) {
  for (const std::size_t size : {32u, 64u, 512u, 4096u}) {
    const host::Rotation rotation(size, 5);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{31},
                                    size - 1, size, size + 1, 2 * size + 100, std::size_t{8191}}) {
      const std::vector<float> x = Random(count + 1).gaussian(count);
      std::vector<float> expected = x;
      rotate(expected, size, 5, true);
      for (const host::Level level : levels()) {
        std::vector<float> y = x;
        rotation.forward(level, y.data(), count);
        ASSERT_TRUE(same_bits(y, expected)) << size << " " << count << " " << to_string(level);
        rotation.inverse(level, y.data(), count);
        std::vector<float> back = expected;
        rotate(back, size, 5, false);
        ASSERT_TRUE(same_bits(y, back)) << size << " " << count << " " << to_string(level);
        for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(y[i], x[i], 1e-5) << "element " << i;
      }
    }
  }
}

/// What goes over the wire is what the plain codec makes of rotated elements, and what comes out is rotated back; the
/// residual is of rotated elements.
TEST(Rotation, EncodesWhatThePlainCodecMakesOfRotatedElements) {
  for (const int size : {32, 256}) {
    for (const std::size_t count : {1u, 63u, 64u, 777u, 5000u}) {
      for (const ElementType type : kElementTypes) {
        for (const host::Level level : levels()) {
          SCOPED_TRACE(std::to_string(size) + " " + std::to_string(count) + " " + std::string(to_string(type)) + " " +
                       std::string(to_string(level)));
          const HostCoder<Int4> rotated(Rotated<Int4>{size, {}, 3}, level), plain(Int4{}, level);
          const std::vector<float> x = from_buffer(type, to_buffer(type, Random(count).gaussian(count)));
          const std::vector<float> before = Random(count + 1).gaussian(count, 0.01);
          std::vector<float> turned = x;
          rotate(turned, static_cast<std::size_t>(size), 3, true);
          const EncodeOutput expected = encode(plain, ElementType::f32, turned, before);
          const EncodeOutput actual = encode(rotated, type, x, before);
          ASSERT_TRUE(same_bytes(actual.wire, expected.wire));
          ASSERT_TRUE(same_bits(actual.residual, expected.residual));
          std::vector<float> decoded = decode(plain, expected.wire, count);
          rotate(decoded, static_cast<std::size_t>(size), 3, false);
          ASSERT_TRUE(
              same_bits(decode(rotated, type, actual.wire, count), from_buffer(type, to_buffer(type, decoded))));
        }
      }
    }
  }
}

/// Contributions are summed rotated: the sum is that of the plain codec on rotated elements, rotated back once.
TEST(Rotation, CombinesInTheRotatedDomain) {
  constexpr std::size_t kCount = 3000;
  const HostCoder<Int8> rotated(Rotated<Int8>{256, {}, 0}), plain;
  CombineInput input;
  input.contributions = contributions(3, kCount, ElementType::f32);
  input.own = 1;
  input.divisor = 3;
  input.sender = Random(1).gaussian(kCount, 0.01);
  input.owner = Random(2).gaussian(kCount, 0.01);
  CombineInput turned = input;
  std::vector<std::vector<std::byte>> wires;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    rotate(turned.contributions[rank], 256, 0, true);
    wires.push_back(encode(rotated, ElementType::f32, input.contributions[rank]).wire);
    ASSERT_TRUE(same_bytes(wires.back(), encode(plain, ElementType::f32, turned.contributions[rank]).wire));
  }
  for (const bool encoded : {true, false}) {
    input.encoded = turned.encoded = encoded;
    const CombineOutput actual = combine(rotated, input, wires);
    CombineOutput expected = combine(plain, turned, wires);
    rotate(expected.out, 256, 0, false);
    expect_combined(actual, expected);
    if (!encoded) continue;
    EXPECT_TRUE(same_bits(decode(rotated, actual.wire, kCount), actual.out)) << "not what all decode";
  }
}

/// The error no longer depends on what the elements are like, and a 16-bit buffer's rounding is not lost.
TEST(Rotation, SpreadsOutliers) {
  std::printf("NMSE, 4 bits in blocks of 32");
  const HostCoder<Int4> plain(Int4{.block = 32}), small(Rotated<Int4>{32, {.block = 32}}),
      large(Rotated<Int4>{4096, {.block = 32}});
  for (const Distribution distribution : kDistributions) {
    const std::vector<float>& x = sample(distribution);
    const double without = nmse(x, round_trip(plain, x)), with = nmse(x, round_trip(small, x)),
                 wide = nmse(x, round_trip(large, x));
    std::printf("   %s: %.2e, hadamard:32 %.2e, hadamard:4096 %.2e", std::string(to_string(distribution)).c_str(),
                without, with, wide);
    EXPECT_LT(with, 0.0078) << to_string(distribution);
    EXPECT_LT(wide, 0.0078) << to_string(distribution);
  }
  std::printf("\n");
}

/// The mean over rotations: exact with EDEN's scale, whose error falls with the number of rotations, and short of the
/// elements with the scale of least error, by 1 - 2/pi for one bit.
TEST(Rotation, EdenIsUnbiasedOverRotations) {
  constexpr std::size_t kCount = 4096;
  constexpr int kRotations = 400;
  const std::vector<float> x(sample(Distribution::student_t3).begin(),
                             sample(Distribution::student_t3).begin() + kCount);
  const auto error_of_mean = [&](const auto& codec) {
    std::vector<double> mean(kCount, 0.0);
    for (int seed = 0; seed < kRotations; ++seed) {
      const HostCoder coder(Rotated{4096, codec, static_cast<std::uint64_t>(seed)});
      const std::vector<float> decoded = round_trip(coder, x);
      for (std::size_t i = 0; i < kCount; ++i) mean[i] += double{decoded[i]} / kRotations;
    }
    double error = 0, power = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      error += (mean[i] - double{x[i]}) * (mean[i] - double{x[i]});
      power += double{x[i]} * double{x[i]};
    }
    return error / power;
  };
  // One rotation has an NMSE of pi/2 - 1 = 0.571; the mean of 400 a 400th, to some percent.
  const double eden = error_of_mean(Eden<1>{.block = 4096}), lloyd = error_of_mean(Lloyd<1>{.block = 4096});
  std::printf("NMSE of the mean of %d rotations at 1 bit: eden %.5f, lloyd %.5f\n", kRotations, eden, lloyd);
  EXPECT_NEAR(eden, 0.571 / kRotations, 0.2 * 0.571 / kRotations);
  EXPECT_NEAR(lloyd, (1 - 2 / 3.14159265) * (1 - 2 / 3.14159265), 0.01);
}

TEST(Rotation, NothingIsLostOverManySteps) {
  constexpr std::size_t kCount = 1000, kRanks = 3;
  for (const ElementType type : kElementTypes) {
    const HostCoder<Int4> coder(Rotated<Int4>{128, {}, 1});
    std::vector<std::vector<float>> senders(kRanks, std::vector<float>(kCount, 0.0f));
    std::vector<float> owner(kCount, 0.0f);
    std::vector<double> given(kCount, 0.0), received(kCount, 0.0);
    for (std::size_t step = 0; step < 50; ++step) {
      CombineInput input;
      input.type = type;
      input.own = step % kRanks;
      input.divisor = kRanks;
      input.owner = owner;
      input.sender = senders[input.own];
      std::vector<std::vector<std::byte>> wires(kRanks);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        input.contributions.push_back(
            from_buffer(type, to_buffer(type, Random(step * kRanks + rank).gaussian(kCount))));
        for (std::size_t i = 0; i < kCount; ++i) given[i] += double{input.contributions[rank][i]} / kRanks;
        if (rank == input.own) continue;
        EncodeOutput encoded = encode(coder, type, input.contributions[rank], senders[rank]);
        wires[rank] = std::move(encoded.wire);
        senders[rank] = std::move(encoded.residual);
      }
      CombineOutput output = combine(coder, input, wires);
      senders[input.own] = std::move(output.sender);
      owner = std::move(output.owner);
      for (std::size_t i = 0; i < kCount; ++i) received[i] += double{output.out[i]};
    }
    std::vector<float> kept = owner;
    for (std::size_t i = 0; i < kCount; ++i)
      for (const std::vector<float>& sender : senders) kept[i] += sender[i] / kRanks;
    rotate(kept, 128, 1, false);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(received[i] + double{kept[i]}, given[i], 2e-4) << to_string(type) << " element " << i;
  }
}

TEST(Rotation, ANonFiniteElementStaysInItsBlockAndIsReported) {
  const HostCoder<Int8> coder(Rotated<Int8>{256, {}, 0});
  std::vector<float> x = Random(4).gaussian(2000);
  const std::vector<float> before = Random(5).gaussian(2000, 0.01);
  const std::vector<float> clean = decode(coder, encode(coder, ElementType::f32, x, before).wire, x.size());
  x[300] = NAN;
  const EncodeOutput encoded = encode(coder, ElementType::f32, x, before);
  EXPECT_GE(encoded.nonfinite, 1u);
  const std::vector<float> decoded = decode(coder, encoded.wire, x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::isnan(decoded[i]), i / 256 == 1) << i;
    if (i / 256 == 1)
      ASSERT_EQ(encoded.residual[i], before[i]);
    else
      ASSERT_EQ(decoded[i], clean[i]);
  }
}

/// Far out of range an element may overflow where it is rotated back, and then it is counted.
TEST(Rotation, OverflowsAreCounted) {
  for (const int size : {32, 4096}) {
    const HostCoder<Int8> coder(Rotated<Int8>{size, {}, 0});
    for (const ElementType type : kElementTypes) {
      CombineInput input;
      input.type = type;
      input.contributions.assign(2, std::vector<float>(5000, 0.0f));
      for (std::vector<float>& x : input.contributions)
        x[7] = type == ElementType::f16 ? 40000.0f : rounded(type, 3e38f);
      std::vector<std::vector<std::byte>> wires;
      std::uint64_t reported = 0;
      for (const std::vector<float>& x : input.contributions) {
        EncodeOutput encoded = encode(coder, type, x);
        reported += encoded.nonfinite;
        wires.push_back(std::move(encoded.wire));
      }
      input.owner = std::vector<float>(5000, 0.0f);
      const CombineOutput sum = combine(coder, input, wires);
      EXPECT_TRUE(is_finite(sum.out[7]) || reported + sum.nonfinite.result > 0) << size << " " << to_string(type);
      EXPECT_FALSE(is_finite(sum.out[7])) << size << " " << to_string(type);
      EXPECT_TRUE(same_bits(decode(coder, type, sum.wire, 5000), sum.out));
      // One of them alone is within range, and arrives.
      input.contributions[1].assign(5000, 0.0f);
      wires[1] = encode(coder, type, input.contributions[1]).wire;
      const CombineOutput one = combine(coder, input, wires);
      EXPECT_EQ(one.nonfinite.contribution + one.nonfinite.result, 0u) << size << " " << to_string(type);
      EXPECT_TRUE(is_finite(one.out[7])) << size << " " << to_string(type);
    }
  }
}

TEST(Rotation, SessionsHoldTheSameBitsHoweverTheyAreCut) {
  const auto run = [](int ranks, std::size_t share) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
    local::run(ranks, [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options{.codec = parse_codec("hadamard:128+int4:block=32")};
      options.plan.share_elements = share;
      options.plan.algorithm = Algorithm::two_shot;
      Session session(transport, options);
      session.add("w", {77, 131});
      session.seal();
      for (int step = 0; step < 3; ++step) {
        std::vector<float> gradient =
            Random(static_cast<std::uint64_t>(step * 10 + transport->rank())).gaussian(77 * 131);
        session.all_reduce(std::span<float>(gradient));
        session.commit();
        results[static_cast<std::size_t>(transport->rank())] = gradient;
      }
    });
    for (const std::vector<float>& result : results) EXPECT_TRUE(same_bits(result, results[0]));
    return results[0];
  };
  for (const int ranks : {1, 3, 4}) EXPECT_TRUE(same_bits(run(ranks, 300), run(ranks, 1 << 16))) << ranks;
}

TEST(Rotation, SpecificationsAndTheirErrors) {
  EXPECT_EQ(parse_codec("hadamard:32+int4").spec(), "hadamard:32+int4:block=64");
  EXPECT_EQ(parse_codec("hadamard:4096,seed=7+int2:block=32,round=stochastic").spec(),
            "hadamard:4096,seed=7+int2:block=32,round=stochastic");
  EXPECT_EQ(Codec(Rotated<Int4>{.size = 64}).spec(), "hadamard:64+int4:block=64");
  EXPECT_EQ(parse_codec("hadamard:128+int8").coder(ElementType::f32)->block(), 256u);
  EXPECT_EQ(parse_codec("hadamard:1024+int8").coder(ElementType::f32)->block(), 1024u);
  const auto refused = [](const std::string& text, const std::string& why) {
    try {
      parse_codec(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refused("hadamard:32", "needs a codec behind it");
  refused("hadamard:48+int4", "power of two from 32 to 4096, got 48");
  refused("hadamard:16+int4", "power of two from 32 to 4096, got 16");
  refused("hadamard:8192+int4", "got 8192");
  refused("hadamard:64+int4:block=48", "must divide the block");
  refused("hadamard:64,speed=1+int4", "unknown option");
  refused("hadamard:64+exact", "exact elements are not rotated");
  refused("hadamard4096+lloyd2", "\"hadamard4096\" before a + is not known");
  refused("hadamardfoo+int4", "not known");
  refused("int8+int4", "\"int8\" before a + is not known");
}

}  // namespace
}  // namespace tightwire::testing::rotation_test
