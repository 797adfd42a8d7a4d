#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <optional>
#include <span>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/testing/data.hpp>
#include <tightwire/testing/reference_codec.hpp>

namespace tightwire::testing {

/// Equal bit for bit, so that -0 is not 0 and a NaN is itself.
inline ::testing::AssertionResult same_bits(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " elements, not " << expected.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (detail::to_bits(actual[i]) == detail::to_bits(expected[i])) continue;
    char text[128];
    std::snprintf(text, sizeof text, "element %zu of %zu is %a (%g) and should be %a (%g)", i, actual.size(),
                  static_cast<double>(actual[i]), static_cast<double>(actual[i]), static_cast<double>(expected[i]),
                  static_cast<double>(expected[i]));
    return ::testing::AssertionFailure() << text;
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult same_bytes(std::span<const std::byte> actual, std::span<const std::byte> expected) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " bytes, not " << expected.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    char text[96];
    std::snprintf(text, sizeof text, "byte %zu of %zu is 0x%02x and should be 0x%02x", i, actual.size(),
                  std::to_integer<unsigned>(actual[i]), std::to_integer<unsigned>(expected[i]));
    return ::testing::AssertionFailure() << text;
  }
  return ::testing::AssertionSuccess();
}

struct EncodeOutput {
  std::vector<std::byte> wire;
  std::vector<float> residual;
  std::uint64_t nonfinite = 0;
};

/// The verbs of a coder on plain vectors. Every output buffer is filled with rubbish first.
inline EncodeOutput encode(const Coder& coder, ElementType type, std::span<const float> x,
                           const std::optional<std::vector<float>>& residual = std::nullopt,
                           const Noise* noise = nullptr) {
  const std::vector<std::byte> data = to_buffer(type, x);
  EncodeOutput output;
  output.wire.assign(coder.wire_bytes(x.size()), std::byte{0xa5});
  Coder::Encode job{data.data(), {}, x.size(), output.wire.data()};
  job.noise = noise;
  if (residual) {
    output.residual.assign(x.size(), -12345.0f);
    job.residual = {residual->data(), output.residual.data()};
  }
  output.nonfinite = coder.encode(type, job);
  return output;
}

inline std::vector<float> decode(const Coder& coder, ElementType type, std::span<const std::byte> wire,
                                 std::size_t count) {
  std::vector<std::byte> out(count * element_bytes(type), std::byte{0xa5});
  coder.decode(type, {wire.data(), count, out.data()});
  return from_buffer(type, out);
}
inline std::vector<float> decode(const Coder& coder, std::span<const std::byte> wire, std::size_t count) {
  return decode(coder, ElementType::f32, wire, count);
}
/// What fp32 values become by being encoded.
inline std::vector<float> round_trip(const Coder& coder, std::span<const float> x) {
  return decode(coder, encode(coder, ElementType::f32, x).wire, x.size());
}

/// `wires` holds one encoded slice per rank; that of our own is not used.
inline CombineOutput combine(const Coder& coder, const CombineInput& input,
                             const std::vector<std::vector<std::byte>>& wires) {
  const std::vector<float>& own = input.contributions[input.own];
  const std::vector<std::byte> data = to_buffer(input.type, own);
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < wires.size(); ++rank)
    sources.push_back(rank == input.own ? nullptr : wires[rank].data());
  CombineOutput output;
  std::vector<std::byte> out(data.size(), std::byte{0xa5});
  Coder::Combine job{sources, data.data(), {}, {}, own.size(), input.divisor, nullptr, out.data()};
  if (input.sender) {
    output.sender.assign(own.size(), -12345.0f);
    job.sender = {input.sender->data(), output.sender.data()};
  }
  if (input.owner && input.encoded) {
    output.owner.assign(own.size(), -12345.0f);
    job.owner = {input.owner->data(), output.owner.data()};
  }
  job.sender_noise = input.sender_noise;
  job.owner_noise = input.owner_noise;
  if (input.encoded) {
    output.wire.assign(coder.wire_bytes(own.size()), std::byte{0xa5});
    job.wire = output.wire.data();
  }
  output.nonfinite = coder.combine(input.type, job);
  output.out = from_buffer(input.type, out);
  return output;
}

/// Contributions that differ by rank, with blocks of zeros and of another size among them.
inline std::vector<std::vector<float>> contributions(std::size_t ranks, std::size_t count, ElementType type) {
  std::vector<std::vector<float>> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Random random(1000 * ranks + rank);
    std::vector<float> x = random.gaussian(count, 1.0 + static_cast<double>(rank));
    for (std::size_t i = 0; i < count; ++i) {
      if (i / 32 % 7 == rank) x[i] = 0.0f;
      if (i / 64 % 5 == rank) x[i] *= 0.001f;
    }
    all.push_back(from_buffer(type, to_buffer(type, x)));
  }
  return all;
}

inline void expect_combined(const CombineOutput& actual, const CombineOutput& expected) {
  ASSERT_TRUE(same_bytes(actual.wire, expected.wire)) << "wire";
  ASSERT_TRUE(same_bits(actual.out, expected.out)) << "out";
  ASSERT_TRUE(same_bits(actual.sender, expected.sender)) << "sender's residual";
  ASSERT_TRUE(same_bits(actual.owner, expected.owner)) << "owner's residual";
  ASSERT_EQ(actual.nonfinite.contribution, expected.nonfinite.contribution);
  ASSERT_EQ(actual.nonfinite.result, expected.nonfinite.result);
}

/// Element of largest magnitude in each block; of -m and +m, -m.
inline std::vector<float> largest_per_block(std::span<const float> x, std::size_t block) {
  std::vector<float> largest((x.size() + block - 1) / block);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::abs(x[i]) > std::abs(largest[i / block]) || x[i] == -std::abs(largest[i / block]))
      largest[i / block] = x[i];
  return largest;
}
/// Every element within what the codec claims, and finite.
inline ::testing::AssertionResult within_bound(const Subject& subject, int block, std::span<const float> x,
                                               std::span<const float> decoded) {
  const std::vector<float> largest = largest_per_block(x, static_cast<std::size_t>(block));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = static_cast<double>(x[i]);
    const double extreme = static_cast<double>(largest[i / static_cast<std::size_t>(block)]);
    const double error = std::abs(exact - static_cast<double>(decoded[i]));
    if (!(error <= subject.error_bound(exact, extreme)) || !is_finite(decoded[i]))
      return ::testing::AssertionFailure()
             << "element " << i << ", " << x[i] << " in a block up to " << extreme << ", decodes to " << decoded[i]
             << ": error " << error << " over the bound " << subject.error_bound(exact, extreme);
  }
  return ::testing::AssertionSuccess();
}

/// Normalised mean squared error.
inline double nmse(std::span<const float> x, std::span<const float> decoded) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = static_cast<double>(x[i]);
    const double difference = exact - static_cast<double>(decoded[i]);
    error += difference * difference;
    power += exact * exact;
  }
  return error / power;
}

}  // namespace tightwire::testing
