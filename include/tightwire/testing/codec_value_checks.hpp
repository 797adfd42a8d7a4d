#pragma once
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <tightwire/detail/flush_to_zero.hpp>
#include <tightwire/testing/calls.hpp>
#include <tightwire/testing/codec_wire_checks.hpp>

namespace tightwire::testing {

/// The promised accuracy on Gaussian data, the promised bound per element on all, over a million elements each.
inline void check_error(const Subject& subject) {
  const auto coder = subject.coder();
  std::string line = subject.name + ": root of NMSE";
  for (const Distribution distribution : kDistributions) {
    const std::vector<float>& x = sample(distribution);
    const std::vector<float> decoded = round_trip(*coder, x);
    EXPECT_TRUE(within_bound(subject, subject.block, x, decoded)) << to_string(distribution);
    const double error = std::sqrt(nmse(x, decoded));
    if (distribution == Distribution::gaussian) {
      EXPECT_LE(error, subject.accuracy);
    }
    char text[64];
    std::snprintf(text, sizeof text, "  %s %.3g", std::string(to_string(distribution)).c_str(), error);
    line += text;
  }
  std::printf("[ ACCURACY ] %s (promised on Gaussian: %.3g)\n", line.c_str(), subject.accuracy);
}

/// Zeros stay zeros, alone and beside large values, and gather no residual however long it goes on.
inline void check_zero(const Subject& subject) {
  const auto coder = subject.coder();
  const auto block = static_cast<std::size_t>(subject.block);
  const std::size_t count = 4 * block + 3;
  for (const float zero : {0.0f, -0.0f}) {
    const std::vector<float> zeros(count, zero);
    for (const float x : round_trip(*coder, zeros)) ASSERT_EQ(x, 0.0f);
  }
  if (!subject.exact_zero) return;
  Random random(8);
  std::vector<float> residual(count, 0.0f);
  for (int step = 0; step < 100; ++step) {
    std::vector<float> x(count, 0.0f);
    for (std::size_t i = 0; i < count; ++i)
      if (i % 3 == 0 && i >= block) x[i] = static_cast<float>(1000.0 * random.gaussian());
    const EncodeOutput encoded = encode(*coder, ElementType::f32, x, residual);
    const std::vector<float> decoded = decode(*coder, encoded.wire, count);
    residual = encoded.residual;
    for (std::size_t i = 0; i < count; ++i)
      if (i % 3 != 0 || i < block) {
        ASSERT_EQ(decoded[i], 0.0f) << "element " << i << " in step " << step;
        ASSERT_EQ(residual[i], 0.0f) << "element " << i << " in step " << step;
      }
  }
}

inline void check_equal_and_outlier(const Subject& subject) {
  const auto coder = subject.coder();
  const auto block = static_cast<std::size_t>(subject.block);
  for (const float value : {1.0f, -1.0f, 3.14159f, -2.71828f, 1e-20f, -1e20f, 65504.0f}) {
    if (std::abs(value) > subject.largest) continue;
    const std::vector<float> equal(2 * block + 1, value);
    const std::vector<float> decoded = round_trip(*coder, equal);
    EXPECT_TRUE(within_bound(subject, subject.block, equal, decoded));
    // The last block is another one, of a single element.
    for (std::size_t i = 0; i < (subject.keeps_extremes ? decoded.size() : 2 * block); ++i)
      ASSERT_EQ(decoded[i], decoded[0]) << "equal elements decode to different values";

    for (const std::size_t at : {std::size_t{0}, block / 2, block - 1, block, 2 * block}) {
      std::vector<float> outlier(2 * block + 1, 0.0f);
      outlier[at] = value;
      const std::vector<float> result = round_trip(*coder, outlier);
      EXPECT_TRUE(within_bound(subject, subject.block, outlier, result)) << "outlier at " << at;
      for (std::size_t i = 0; i < result.size(); ++i)
        if (i != at && (subject.exact_zero || i / block != at / block)) {
          ASSERT_EQ(result[i], 0.0f) << "element " << i;
        }
    }
  }
}

inline void check_idempotent(const Subject& subject) {
  const auto coder = subject.coder();
  for (const Distribution distribution : kDistributions) {
    const std::span<const float> x(sample(distribution).data(), 100'000);
    const EncodeOutput once = encode(*coder, ElementType::f32, x);
    const EncodeOutput twice = encode(*coder, ElementType::f32, decode(*coder, once.wire, x.size()));
    EXPECT_TRUE(same_bytes(twice.wire, once.wire)) << to_string(distribution);
  }
}

inline void check_scale_invariant(const Subject& subject) {
  const auto coder = subject.coder();
  const std::span<const float> x(sample(Distribution::student_t3).data(), 100'000);
  const std::vector<float> zero(x.size(), 0.0f);
  const EncodeOutput plain = encode(*coder, ElementType::f32, x, zero);
  const std::vector<float> decoded = decode(*coder, plain.wire, x.size());
  for (const int exponent : {-40, -20, -1, 1, 20, 60}) {
    const auto scaled = [&](std::span<const float> values) {
      std::vector<float> result(values.begin(), values.end());
      for (float& value : result) value = std::ldexp(value, exponent);
      return result;
    };
    const EncodeOutput encoded = encode(*coder, ElementType::f32, scaled(x), zero);
    EXPECT_TRUE(same_bits(decode(*coder, encoded.wire, x.size()), scaled(decoded))) << "2^" << exponent;
    EXPECT_TRUE(same_bits(encoded.residual, scaled(plain.residual))) << "2^" << exponent;
  }
}

inline void check_odd_symmetric(const Subject& subject) {
  const auto coder = subject.coder();
  for (const Distribution distribution : kDistributions) {
    std::vector<float> x(sample(distribution).begin(), sample(distribution).begin() + 100'000);
    const std::vector<float> decoded = round_trip(*coder, x);
    for (float& element : x) element = -element;
    const std::vector<float> mirrored = round_trip(*coder, x);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(mirrored[i], -decoded[i]) << "element " << i;
  }
}

/// Blocks at the lower end of fp32: no NaN, an error of at most one step (which is never below the smallest normal
/// number), and a decoded value that does not depend on whether the decoding CPU flushes subnormals.
inline void check_tiny_blocks(const Subject& subject) {
  const auto coder = subject.coder();
  const auto reference = subject.reference();
  const auto block = static_cast<std::size_t>(subject.block);
  const std::size_t count = 2 * block + 7;
  for (const int exponent : {-118, -120, -125, -126, -127, -130, -134, -140, -149}) {
    SCOPED_TRACE("largest element 2^" + std::to_string(exponent));
    Random random(static_cast<std::uint64_t>(-exponent));
    std::vector<float> x(count);
    for (float& element : x) element = static_cast<float>(std::ldexp(2.0 * random.uniform() - 1.0, exponent));
    x[3] = x[block + 1] = std::ldexp(1.0f, exponent);
    x[count - 1] = -std::ldexp(1.0f, exponent);

    const EncodeOutput encoded = encode(*coder, ElementType::f32, x);
    EXPECT_TRUE(same_bytes(encoded.wire, reference->encode(x).wire));
    std::vector<std::byte> flushed_wire(encoded.wire.size());
    std::vector<float> flushed_out(count), flushed_own(count);
    const std::byte* sources[3] = {encoded.wire.data(), nullptr, encoded.wire.data()};
    std::vector<std::byte> sum_wire(encoded.wire.size());
    {
      const detail::FlushToZero flush;
      coder->encode(ElementType::f32, {x.data(), {}, count, flushed_wire.data()});
      coder->decode(ElementType::f32, {encoded.wire.data(), count, flushed_out.data()});
      coder->combine(ElementType::f32, {sources, x.data(), {}, {}, count, 3, sum_wire.data(), flushed_own.data()});
    }
    EXPECT_TRUE(same_bits(flushed_own, decode(*coder, sum_wire, count))) << "owner flushes, others do not";
    for (const std::vector<std::byte>* wire : {&std::as_const(encoded.wire), &std::as_const(flushed_wire)}) {
      const std::vector<float> decoded = decode(*coder, *wire, count);
      for (std::size_t i = 0; i < count; ++i) {
        const double exact = static_cast<double>(x[i]);
        const double bound = subject.error_bound(exact, std::ldexp(1.0, exponent)) + static_cast<double>(FLT_MIN);
        ASSERT_TRUE(is_finite(decoded[i])) << "element " << i;
        ASSERT_LE(std::abs(exact - static_cast<double>(decoded[i])), bound) << "element " << i;
      }
      for (const ElementType type : kElementTypes) {
        const std::vector<float> expected = decode(*coder, type, *wire, count);
        std::vector<std::byte> out(count * element_bytes(type));
        {
          const detail::FlushToZero flush;
          coder->decode(type, {wire->data(), count, out.data()});
        }
        EXPECT_TRUE(same_bytes(out, to_buffer(type, expected))) << to_string(type);
      }
    }
  }
}

/// While the CPU flushes subnormals, as input and as result, every instruction set and element type gives the bits of
/// the reference that runs likewise, of patterns of every kind: in encode with residuals, decode, and combine.
inline void check_flushing_levels(const Subject& subject) {
  if (!detail::FlushToZero::kAvailable) GTEST_SKIP() << "no such mode on this CPU";
  const auto reference = subject.reference();
  const std::size_t count = 3 * static_cast<std::size_t>(subject.block) + 7;
  std::vector<float> given = awkward_values(count, false), before = Random(3).gaussian(count, 0.01);
  for (std::size_t i = 0; i < count; ++i) {
    if (i / static_cast<std::size_t>(subject.block) == 1) given[i] = std::ldexp(before[i], -118);  // a tiny block
    if (i % 19 == 7) before[i] = 0x1p-130f;
  }
  const detail::FlushToZero flush;
  for (const ElementType type : kElementTypes) {
    CombineInput input;
    input.type = type;
    input.own = 1;
    input.divisor = 3;
    input.sender = input.owner = before;
    std::vector<std::vector<std::byte>> wires;
    std::vector<std::vector<float>> decoded;
    const std::vector<float> x = from_buffer(type, to_buffer(type, given));
    for (const float factor : {1.0f, -0.75f, 0x1p-3f}) {
      std::vector<float>& contribution = input.contributions.emplace_back(x);
      for (float& element : contribution) element = rounded(type, factor * element);
      wires.push_back(reference->encode(contribution).wire);
      decoded.push_back(reference->decode(wires.back(), count));
    }
    const std::vector<float> total = sum(x, before);
    const Encoded expected = reference->encode(total);
    const CombineOutput combined = reference_combine(*reference, input, decoded);
    for (const host::Level level : levels()) {
      SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(level)));
      const auto coder = subject.coder(level);
      const EncodeOutput encoded = encode(*coder, type, x, before);
      ASSERT_TRUE(same_bytes(encoded.wire, expected.wire));
      ASSERT_TRUE(same_bits(encoded.residual, residual_after(total, expected.values, before)));
      ASSERT_TRUE(same_bytes(to_buffer(type, decode(*coder, type, wires[0], count)), to_buffer(type, decoded[0])));
      ASSERT_NO_FATAL_FAILURE(expect_combined(combine(*coder, input, wires), combined));
    }
  }
}

}  // namespace tightwire::testing
