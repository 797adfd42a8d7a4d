#pragma once
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include <tightwire/error.hpp>
#include <tightwire/testing/calls.hpp>

namespace tightwire::testing {

/// Bit patterns that take every branch of a codec: zeros of both signs, subnormals, extremes, NaNs and infinities, in
/// between ordinary numbers, so that each block of 16 to 256 elements has another mixture.
inline std::vector<float> awkward_values(std::size_t count, bool finite) {
  static constexpr std::array<std::uint32_t, 16> kPatterns = {
      0x00000000u, 0x80000000u, 0x00000001u, 0x80000001u, 0x007fffffu, 0x00800000u, 0x80800000u, 0x7f7fffffu,
      0xff7fffffu, 0x3f800000u, 0xbf800000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00001u, 0x7f800001u};
  Random random(count + 99);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t kinds = finite ? 11 : kPatterns.size();
    const std::size_t rarity = i / 512 % 2 == 0 ? 4 : 200;
    x[i] = random.below(rarity) == 0
               ? detail::from_bits(kPatterns[random.below(kinds)])
               : std::ldexp(static_cast<float>(random.gaussian()), static_cast<int>(random.below(40)) - 20);
  }
  return x;
}
inline std::vector<float> ramp(std::size_t count) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(static_cast<int>(i % 512) - 255) * 0.37f;
  return x;
}

inline void check_wire_size(const Subject& subject) {
  const auto coder = subject.coder();
  const auto block = static_cast<std::size_t>(subject.block);
  EXPECT_EQ(coder->block(), block);
  EXPECT_EQ(coder->spec(), subject.name + ":block=" + std::to_string(block));
  const auto expected = [&](std::size_t count) {
    const std::size_t blocks = count / block + (count % block != 0 ? 1 : 0);
    const std::size_t parts = count / subject.part + (count % subject.part != 0 ? 1 : 0);
    const std::size_t params = (blocks * subject.shared_bytes + parts * subject.param_bytes + 15) / 16 * 16;
    if (subject.base != 0) {
      const std::size_t run = subject.base == 6 ? 48 : 80, run_bytes = subject.base == 9 ? 32 : 16;
      return params + (count / block * ((block + run - 1) / run) + (count % block + run - 1) / run) * run_bytes;
    }
    const std::size_t bits = count * static_cast<std::size_t>(subject.bits);
    return params + (bits + 127) / 128 * 16;
  };
  for (std::size_t count = 0; count <= 3 * block + 1; ++count)
    ASSERT_EQ(coder->wire_bytes(count), expected(count)) << count << " elements";
  for (const std::size_t count : {std::size_t{589824}, std::size_t{1} << 20, (std::size_t{1} << 31) + 7,
                                  (std::size_t{1} << 32) + 1, std::size_t{5'000'000'011}})
    ASSERT_EQ(coder->wire_bytes(count), expected(count)) << count << " elements";
}

/// The bytes of the reference, from every instruction set, element type and size, and not a byte beside them.
inline void check_encoded_bytes(const Subject& subject) {
  const auto reference = subject.reference();
  const auto block = static_cast<std::size_t>(subject.block);
  const std::vector<float> awkward = awkward_values(3 * block + 1, false);
  const std::vector<float> smooth = ramp(3 * block + 1);
  constexpr std::size_t kGuard = 64;
  for (std::size_t count = 0; count <= 3 * block + 1; count += count < 2 * block ? 1 : 7) {
    const std::span<const float> x(count % 2 == 0 ? smooth.data() : awkward.data(), count);
    for (const ElementType type : kElementTypes) {
      const std::vector<std::byte> data = to_buffer(type, x);
      const Encoded expected = reference->encode(from_buffer(type, data));
      for (const host::Level level : levels()) {
        const auto coder = subject.coder(level);
        SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(level)) + " " + std::to_string(count));
        std::vector<std::byte> memory(expected.wire.size() + 2 * kGuard, std::byte{0x5a});
        ASSERT_EQ(coder->encode(type, {data.data(), {}, count, memory.data() + kGuard}), expected.nonfinite);
        ASSERT_TRUE(same_bytes({memory.data() + kGuard, expected.wire.size()}, expected.wire));

        std::vector<std::byte> out(data.size() + 2 * kGuard, std::byte{0x5a});
        coder->decode(type, {expected.wire.data(), count, out.data() + kGuard});
        std::vector<float> decoded = reference->decode(expected.wire, count);
        ASSERT_TRUE(same_bytes({out.data() + kGuard, data.size()}, to_buffer(type, decoded)));
        for (std::size_t i = 0; i < kGuard; ++i) {
          ASSERT_EQ(memory[i], std::byte{0x5a}) << "written before the wire";
          ASSERT_EQ(memory[memory.size() - 1 - i], std::byte{0x5a}) << "written past the wire";
          ASSERT_EQ(out[i], std::byte{0x5a}) << "written before the output";
          ASSERT_EQ(out[out.size() - 1 - i], std::byte{0x5a}) << "written past the output";
        }
      }
    }
  }
}

/// Every block that is accepted works; every other is refused with a message that names it.
inline void check_blocks(const Subject& subject) {
  for (int block = 16; block <= 4096; block += 16) {
    SCOPED_TRACE("block " + std::to_string(block));
    const auto coder = subject.coder_at(block, host::supported_level());
    const auto reference = subject.reference_at(block);
    ASSERT_EQ(coder->block(), static_cast<std::size_t>(block));
    const auto size = static_cast<std::size_t>(block);
    for (const std::size_t count : {size - 1, size + 17}) {
      const std::vector<float> x = Random(size + count).gaussian(count);
      const EncodeOutput encoded = encode(*coder, ElementType::f32, x);
      ASSERT_TRUE(same_bytes(encoded.wire, reference->encode(x).wire)) << count << " elements";
      const std::vector<float> decoded = decode(*coder, encoded.wire, count);
      ASSERT_TRUE(same_bits(decoded, reference->decode(encoded.wire, count))) << count << " elements";
      ASSERT_TRUE(within_bound(subject, block, x, decoded)) << count << " elements";
    }
  }
  for (const int block : {std::numeric_limits<int>::min(), -16, -1, 0, 1, 8, 15, 17, 24, 100, 4095, 4097, 4112,
                          std::numeric_limits<int>::max()}) {
    try {
      subject.coder_at(block, host::supported_level());
      ADD_FAILURE() << "block " << block << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(std::to_string(block)), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(subject.name), std::string::npos) << error.what();
    }
  }
}

/// Gradients and residuals anywhere their element type may stand, the wire at any byte: the same bytes as ever.
inline void check_unaligned(const Subject& subject) {
  const std::size_t count = 2 * static_cast<std::size_t>(subject.block) + 5;
  const std::vector<float> x = Random(5).gaussian(count);
  const std::vector<float> before = Random(6).gaussian(count, 0.01);
  for (const host::Level level : levels()) {
    const auto coder = subject.coder(level);
    for (const ElementType type : kElementTypes) {
      const EncodeOutput expected = encode(*coder, type, x, before);
      for (std::size_t shift = 0; shift < 17; ++shift) {
        const ExactBytes data(to_buffer(type, x), shift * element_bytes(type));
        const ExactBytes old_residual(as_bytes(before), (shift + 1) % 3 * sizeof(float));
        ExactBytes residual(count * sizeof(float), (shift + 2) % 5 * sizeof(float));
        ExactBytes wire(expected.wire.size(), shift);
        coder->encode(type, {data.data(),
                             {reinterpret_cast<const float*>(old_residual.data()), residual.floats()},
                             count,
                             wire.data()});
        ASSERT_TRUE(same_bytes(wire.bytes(), expected.wire)) << shift;
        ASSERT_TRUE(same_bytes(residual.bytes(), as_bytes(expected.residual))) << shift;
        ExactBytes out(data.size(), (16 - shift) * element_bytes(type));
        coder->decode(type, {wire.data(), count, out.data()});
        ASSERT_TRUE(same_bytes(out.bytes(), to_buffer(type, decode(*coder, expected.wire, count)))) << shift;
      }
    }
  }
}

/// Any bytes decode, within their bounds (buffers are exact for the sanitizer's sake), twice to the same.
inline void check_decode_is_total(const Subject& subject, int payloads = 100'000) {
  Random random(77);
  const auto level_list = levels();
  const std::size_t longest = static_cast<std::size_t>(subject.block) + 40;
  std::vector<std::unique_ptr<Coder>> coders;
  for (const host::Level level : level_list) coders.push_back(subject.coder(level));
  for (int payload = 0; payload < payloads; ++payload) {
    const std::size_t count = random.below(longest);
    const Coder& coder = *coders[random.below(coders.size())];
    const ElementType type = kElementTypes[random.below(kElementTypes.size())];
    ExactBytes wire(coder.wire_bytes(count), random.below(16));
    for (std::size_t i = 0; i < wire.size(); i += 8) {
      const std::uint64_t bits = random.bits();
      std::memcpy(wire.data() + i, &bits, 8);
    }
    ExactBytes once(count * element_bytes(type), 0, std::byte{0x00}), twice(once.size(), 0, std::byte{0xff});
    coder.decode(type, {wire.data(), count, once.data()});
    coder.decode(type, {wire.data(), count, twice.data()});
    ASSERT_TRUE(same_bytes(once.bytes(), twice.bytes())) << "payload " << payload;
    if (payload % 16 != 0) continue;
    // The same holds of a combine: what a peer sent is as foreign there.
    const std::byte* sources[2] = {wire.data(), wire.data()};
    ExactBytes sum_once(wire.size()), sum_twice(wire.size(), 0, std::byte{0x11});
    coder.combine(type, {sources, nullptr, {}, {}, count, 2, sum_once.data(), once.data()});
    coder.combine(type, {sources, nullptr, {}, {}, count, 2, sum_twice.data(), twice.data()});
    ASSERT_TRUE(same_bytes(sum_once.bytes(), sum_twice.bytes())) << "payload " << payload;
    ASSERT_TRUE(same_bytes(once.bytes(), twice.bytes())) << "payload " << payload;
  }
}

}  // namespace tightwire::testing
