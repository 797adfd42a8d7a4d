#pragma once
// What a device and the host make of the same elements, side by side.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device_calls.hpp"

namespace tightwire::testing {

/// A codec on both.
struct Both {
  std::shared_ptr<const tightwire::Coder> host;
  std::shared_ptr<const cuda::Coder> device;
  std::size_t block;
  Both(std::shared_ptr<const tightwire::Coder> on_host, std::shared_ptr<const cuda::Coder> on_device)
      : host(std::move(on_host)), device(std::move(on_device)), block(host->block()) {}
};

/// Gaussian elements with what is special among them: zeros, subnormals, extremes, and NaN and infinities if wanted, in
/// blocks of their own and beside others.
inline std::vector<float> elements(std::size_t count, std::size_t block, bool non_finite, std::uint64_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  Random random(seed);
  std::vector<float> x = random.gaussian(count);
  constexpr float kSpecial[] = {0.0f, -0.0f, 1e-40f, -3e-39f, 6e-5f, 65519.0f, 65520.0f, 1e38f, -3.4e38f, 0.5f, -0.5f};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t b = i / block;
    if (b % 4 == 1) x[i] = 0.0f;
    if (b % 4 == 2 && random.below(7) == 0) x[i] = kSpecial[random.below(std::size(kSpecial))];
    if (b % 8 == 3) x[i] *= 1e-41f;
  }
  if (!non_finite || count == 0) return x;
  for (const float special : {kNaN, kInfinity, -kInfinity, -kNaN, kInfinity}) x[random.below(count)] = special;
  return x;
}

/// 0 to 3 blocks, less one and more one, and several tiles with a short last block.
inline std::vector<std::size_t> sizes(std::size_t block) {
  std::vector<std::size_t> sizes{0, 1, 2, 15, 16, 17};
  for (const std::size_t blocks : {1, 2, 3})
    for (const int more : {-1, 0, 1}) sizes.push_back(blocks * block + static_cast<std::size_t>(more + 1) - 1);
  sizes.push_back(std::max<std::size_t>(2 * 1024, 2 * block) + 131);
  return sizes;
}

struct Case {
  ElementType type = ElementType::f32;
  std::size_t count = 0;
  bool non_finite = false;
  bool feedback = false;
  bool noisy = false;
  Manner manner;
  std::string text() const {
    return std::string(to_string(type)) + ", " + std::to_string(count) + " elements" +
           (non_finite ? ", not all finite" : "") + (feedback ? ", with feedback" : "") +
           (noisy ? ", with noise" : "") + (manner.misalignment != 0 ? ", at odd addresses" : "") +
           (manner.in_place ? ", in place" : "");
  }
};

inline void expect_same_encoded(const Both& both, const Case& c, std::span<const float> x) {
  const Noise noise{.seed = 0x0123456789abcdefu, .use = 3, .parameter = 5, .stream = 2, .first = 3 * both.block};
  const Noise* const given = c.noisy ? &noise : nullptr;
  std::optional<std::vector<float>> residual;
  if (c.feedback) residual = Random(c.count + 1).gaussian(c.count, 0.25);
  const EncodeOutput expected = encode(*both.host, c.type, x, residual, given);
  const EncodeOutput actual = encode(*both.device, c.type, x, residual, given, c.manner);
  ASSERT_TRUE(same_bytes(actual.wire, expected.wire)) << "wire";
  ASSERT_TRUE(same_bits(actual.residual, expected.residual)) << "residual";
  ASSERT_EQ(actual.nonfinite, expected.nonfinite);
  ASSERT_TRUE(same_bits(decode(*both.device, c.type, expected.wire, c.count, c.manner),
                        decode(*both.host, c.type, expected.wire, c.count)))
      << "decoded";
}

/// `own`: our place among three ranks; 3 for none.
inline void expect_same_combined(const Both& both, const Case& c, std::size_t own, bool encoded, float divisor) {
  const Noise sender{.seed = 11, .use = 1, .parameter = 2, .stream = 4, .first = 0};
  const Noise owner{.seed = 11, .use = 1, .parameter = 2, .stream = 0, .first = 0};
  CombineInput input;
  input.type = c.type;
  input.own = own;
  input.divisor = divisor;
  input.encoded = encoded;
  std::vector<std::vector<std::byte>> wires;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    input.contributions.push_back(elements(c.count, both.block, c.non_finite, 100 * rank + c.count));
    wires.push_back(encode(*both.host, c.type, input.contributions.back()).wire);
  }
  if (own == 3) input.contributions.push_back(input.contributions[0]);
  if (c.feedback) {
    input.sender = Random(c.count + 2).gaussian(c.count, 0.25);
    input.owner = Random(c.count + 3).gaussian(c.count, 0.25);
  }
  if (own == 3) input.sender.reset();
  if (c.noisy) {
    input.sender_noise = &sender;
    input.owner_noise = &owner;
  }
  expect_combined(combine(*both.device, input, wires, c.manner), combine(*both.host, input, wires));
}

/// Cases that between them have everything with everything else; each codec begins with another.
inline std::vector<Case> cases(const Both& both, std::size_t number) {
  std::vector<Case> all;
  for (const std::size_t count : sizes(both.block)) {
    Case c;
    c.count = count;
    c.type = kElementTypes[number % 3];
    c.non_finite = number % 4 >= 2;
    c.feedback = number % 2 == 0;
    c.noisy = number % 5 == 3;
    c.manner = {.misalignment = number % 7 == 5   ? std::size_t{2 + number % 2}
                                : number % 7 == 6 ? std::size_t{4}
                                                  : 0,
                .in_place = number % 6 == 0};
    all.push_back(c);
    ++number;
  }
  return all;
}

/// Of a codec at every size.
inline void expect_same(const Both& both, std::size_t number) {
  ASSERT_EQ(both.device->spec(), both.host->spec());
  ASSERT_EQ(both.device->block(), both.host->block());
  for (const Case& c : cases(both, number)) {
    SCOPED_TRACE(both.host->spec() + ": " + c.text());
    use_schedule(c.count % schedules().size());
    ASSERT_EQ(both.device->wire_bytes(c.count), both.host->wire_bytes(c.count));
    const std::vector<float> x = elements(c.count, both.block, c.non_finite, c.count + number);
    ASSERT_NO_FATAL_FAILURE(expect_same_encoded(both, c, x));
    const float divisor = c.count % 2 == 0 ? 1.0f : c.count % 3 == 0 ? 3.0f : 4.0f;
    ASSERT_NO_FATAL_FAILURE(expect_same_combined(both, c, c.count % 4, c.count % 5 != 4, divisor));
  }
}

}  // namespace tightwire::testing
