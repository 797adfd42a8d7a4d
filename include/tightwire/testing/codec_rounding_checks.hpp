#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/testing/calls.hpp>

namespace tightwire::testing {

/// Stochastic rounding gives the bytes of the reference, which knows no vectors and no tiles, at every level, for every
/// element type, wherever in its parameter a slice begins; in encode and in both stages of combine.
inline void check_stochastic_bytes(const Subject& subject) {
  const auto reference = subject.reference();
  const auto block = static_cast<std::size_t>(subject.block);
  for (const std::size_t count : {std::size_t{1}, block + 3, 2 * block, std::size_t{3000}}) {
    for (const ElementType type : kElementTypes) {
      const std::vector<std::vector<float>> given = contributions(3, count, type);
      for (const host::Level level : levels()) {
        SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(level)) + " " + std::to_string(count));
        const auto coder = subject.coder(level);
        const Noise noise{0x0123456789abcdefu, 5, 9, 2, 7 * block};
        const Noise of_sum{noise.seed, 5, 9, 0, 7 * block};
        const EncodeOutput encoded = encode(*coder, type, given[0], std::nullopt, &noise);
        ASSERT_TRUE(same_bytes(encoded.wire, reference->encode(given[0], ElementType::f32, &noise).wire));

        CombineInput input;
        input.type = type;
        input.contributions = given;
        input.own = 1;
        input.divisor = 3;
        input.sender = std::vector<float>(count, 0.01f);
        input.owner = std::vector<float>(count, -0.01f);
        input.sender_noise = &noise;
        input.owner_noise = &of_sum;
        std::vector<std::vector<std::byte>> wires;
        std::vector<std::vector<float>> decoded;
        for (const std::vector<float>& x : given) {
          wires.push_back(encode(*coder, type, x).wire);
          decoded.push_back(reference->decode(wires.back(), count));
        }
        ASSERT_NO_FATAL_FAILURE(
            expect_combined(combine(*coder, input, wires), reference_combine(*reference, input, decoded)));
      }
    }
  }
}

/// What `x` decodes to, its blocks dealt out to threads that encode at the same time with one coder.
inline std::vector<float> on_threads(const Coder& coder, std::span<const float> x, std::size_t threads) {
  std::vector<float> all(x.size());
  std::vector<std::thread> running;
  for (std::size_t thread = 0; thread < threads; ++thread)
    running.emplace_back([&, thread] {
      for (std::size_t begin = thread * coder.block(); begin < x.size(); begin += threads * coder.block()) {
        const auto piece = x.subspan(begin, std::min(coder.block(), x.size() - begin));
        const Noise noise{77, 1, 2, 3, begin};
        const std::vector<float> decoded =
            decode(coder, encode(coder, ElementType::f32, piece, std::nullopt, &noise).wire, piece.size());
        std::copy(decoded.begin(), decoded.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
      }
    });
  for (std::thread& thread : running) thread.join();
  return all;
}

/// A slice cut at blocks is rounded as the whole is, on however many threads.
inline void check_stochastic_cuts(const Subject& subject) {
  const auto coder = subject.coder();
  const auto block = static_cast<std::size_t>(subject.block);
  const std::size_t count = 40 * block + 5;
  const std::vector<float> x = Random(21).gaussian(count);
  Noise noise{77, 1, 2, 3, 0};
  const std::vector<float> whole =
      decode(*coder, encode(*coder, ElementType::f32, x, std::nullopt, &noise).wire, count);
  for (const std::size_t blocks : {1u, 3u, 7u}) {
    std::vector<float> pieces;
    for (std::size_t begin = 0; begin < count; begin += blocks * block) {
      const auto piece = std::span(x).subspan(begin, std::min(blocks * block, count - begin));
      noise.first = begin;
      const std::vector<float> decoded =
          decode(*coder, encode(*coder, ElementType::f32, piece, std::nullopt, &noise).wire, piece.size());
      pieces.insert(pieces.end(), decoded.begin(), decoded.end());
    }
    ASSERT_TRUE(same_bits(pieces, whole)) << blocks << " blocks at a time";
  }
  for (const std::size_t threads : {1u, 2u, 8u})
    ASSERT_TRUE(same_bits(on_threads(*coder, x, threads), whole)) << threads << " threads";
}

/// Mean and variance of what decodes: over many uses the mean of every element is the element, and the variance is that
/// of a choice between its two neighbours. No element is clipped, the largest included.
///
/// The mean of `kUses` draws between neighbours `gap` apart has a deviation of at most gap / (2 sqrt(kUses)); six such
/// are exceeded once in 10^9, so that less than one run in 10^5 fails by chance. 16 bits of noise put the mean off by
/// at most gap / 2^17, which is allowed for. Elements so near to a code that the other neighbour was never met are few.
/// The variance, over all elements, is met within 3 %, more than ten deviations.
inline void check_stochastic_moments(const Subject& subject) {
  constexpr int kUses = 2000;
  const auto coder = subject.coder();
  const std::size_t count = std::max<std::size_t>(2 * static_cast<std::size_t>(subject.block), 512);
  const std::vector<float> x = Random(22).gaussian(count);
  std::vector<double> sum(count, 0), squares(count, 0), low(count, 1e300), high(count, -1e300);
  for (int use = 0; use < kUses; ++use) {
    const Noise noise{4711, static_cast<std::uint32_t>(use), 0, 1, 0};
    const std::vector<float> decoded =
        decode(*coder, encode(*coder, ElementType::f32, x, std::nullopt, &noise).wire, count);
    for (std::size_t i = 0; i < count; ++i) {
      const double error = static_cast<double>(decoded[i]) - static_cast<double>(x[i]);
      sum[i] += error;
      squares[i] += error * error;
      low[i] = std::min(low[i], error);
      high[i] = std::max(high[i], error);
    }
  }
  double variance = 0, expected = 0;
  std::size_t one_sided = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (low[i] >= 0 || high[i] <= 0) {
      ++one_sided;
      continue;
    }
    ASSERT_LE(std::abs(sum[i] / kUses), (high[i] - low[i]) * (6 / (2 * std::sqrt(double{kUses})) + 0x1p-17))
        << "element " << i << ", " << x[i] << ": the mean is off";
    variance += squares[i] / kUses;
    expected += -low[i] * high[i];
  }
  EXPECT_LE(one_sided, count / 25) << "elements that were always rounded the same way";
  EXPECT_NEAR(variance / expected, 1.0, 0.03);
}

/// The largest elements stay finite, whichever way they are rounded.
inline void check_stochastic_largest(const Subject& subject) {
  const auto coder = subject.coder();
  const std::size_t count = 2 * static_cast<std::size_t>(subject.block);
  for (const float fraction : {1.0f, 0.99f, 0.8f, 0.7f, 0.51f}) {
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> x(count, sign * fraction * subject.largest);
      x[1] = 0.0f;
      for (std::uint32_t use = 0; use < 50; ++use) {
        const Noise noise{3, use, 0, 1, 0};
        const EncodeOutput run = encode(*coder, ElementType::f32, x, std::vector<float>(count, 0.0f), &noise);
        ASSERT_EQ(run.nonfinite, 0u);
        for (const float value : decode(*coder, run.wire, count)) ASSERT_TRUE(is_finite(value)) << x[0];
        for (const float residual : run.residual) ASSERT_TRUE(is_finite(residual)) << x[0];
      }
    }
  }
}

}  // namespace tightwire::testing
