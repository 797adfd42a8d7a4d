#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <tightwire/detail/pack.hpp>
#include <tightwire/host/code_bits.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/level.hpp>

namespace tightwire::testing::packing_test {
namespace {

/// The instructions of each level against one element after the other.
template <int W, int N>
void check_bytes(std::mt19937& random) {
  using detail::Lanes;
  Lanes<int, W> codes[N], unpacked[N];
  std::byte fast[N * W + 1] = {}, plain[N * W + 1] = {};
  for (int i = 0; i < N * W; ++i) codes[i / W].v[i % W] = static_cast<int>(random() & 255) - 128;
  detail::portable::narrow_to_8(codes, plain);
  detail::narrow_to_8(codes, fast);
  ASSERT_EQ(std::memcmp(fast, plain, sizeof fast), 0) << W << " lanes";
  detail::widen_from_8(fast, unpacked);
  for (int i = 0; i < N * W; ++i)
    ASSERT_EQ(unpacked[i / W].v[i % W], codes[i / W].v[i % W]) << W << " lanes, element " << i;
}
template <int W>
void check_words(std::mt19937& random) {
  using detail::Lanes;
  Lanes<int, W> codes[4], unpacked[4];
  std::byte fast[8 * W + 1] = {}, plain[8 * W + 1] = {};
  for (int i = 0; i < 4 * W; ++i) codes[i / W].v[i % W] = static_cast<int>(random() & 0xffff);
  detail::portable::narrow_to_16(codes, plain);
  detail::narrow_to_16(codes, fast);
  ASSERT_EQ(std::memcmp(fast, plain, sizeof fast), 0) << W << " lanes";
  detail::widen_from_16(fast, unpacked);
  for (int i = 0; i < 4 * W; ++i)
    ASSERT_EQ(unpacked[i / W].v[i % W], codes[i / W].v[i % W]) << W << " lanes, element " << i;
}

TEST(Packing, EqualsOneElementAfterTheOther) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    check_bytes<4, 4>(random), check_words<4>(random);
    if (host::supported_level() >= host::Level::avx2)
      check_bytes<8, 4>(random), check_bytes<8, 2>(random), check_words<8>(random);
    if (host::supported_level() >= host::Level::avx512)
      check_bytes<16, 4>(random), check_bytes<16, 1>(random), check_words<16>(random);
  }
}

/// Fields of every width, at every level and count, against single bits; nothing is written past the last of either.
template <int Bits>
void check_fields(std::mt19937& random) {
  for (const host::Level level : {host::Level::baseline, host::Level::avx2}) {
    if (level > host::supported_level()) continue;
    for (std::size_t count = 0; count <= 100; ++count) {
      const std::size_t bytes = (count * Bits + 7) / 8;
      std::vector<std::byte> codes(count + 24), expected(bytes + 8, std::byte{0x5a});
      for (std::byte& code : codes) code = static_cast<std::byte>(random());
      std::fill_n(expected.begin(), bytes, std::byte{0});
      for (std::size_t bit = 0; bit < count * Bits; ++bit)
        if ((std::to_integer<unsigned>(codes[bit / Bits]) >> bit % Bits & 1u) != 0)
          expected[bit / 8] |= static_cast<std::byte>(1u << bit % 8);
      std::vector<std::byte> wire(bytes + 8, std::byte{0x5a});
      host::run<host::PackBits<Bits>>(level, {codes.data(), count, wire.data()});
      ASSERT_EQ(wire, expected) << Bits << " bits, " << count << " codes";
      std::vector<std::byte> back(count + 24, std::byte{0x5a});
      // Memory of exactly this size, for the sanitizer's sake.
      const std::vector<std::byte> exact(wire.begin(), wire.begin() + static_cast<std::ptrdiff_t>(bytes));
      host::run<host::UnpackBits<Bits>>(level, {exact.data(), count, back.data()});
      for (std::size_t i = 0; i < count; ++i) {
        const int field = std::to_integer<int>(codes[i]) & ((1 << Bits) - 1);
        const int extended = field >> (Bits - 1) != 0 ? field - (1 << Bits) : field;
        ASSERT_EQ(static_cast<std::int8_t>(back[i]), extended) << Bits << " bits, " << count << " codes, code " << i;
      }
      ASSERT_EQ(back[(count + 7) / 8 * 8], std::byte{0x5a});
    }
  }
}

TEST(Packing, FieldsOfEveryWidth) {
  std::mt19937 random(2);
  check_fields<1>(random), check_fields<2>(random), check_fields<3>(random), check_fields<4>(random);
  check_fields<5>(random), check_fields<6>(random), check_fields<7>(random);
}

/// As docs/wire-format.md has it, of any number and at every count; nothing is written past the last row of either.
template <int Base, std::size_t PerNumber, std::size_t Bytes>
void check_digits(std::mt19937& random) {
  constexpr std::size_t kRun = 16 * PerNumber;
  constexpr int kGreatest = (Base - 1) / 2;
  for (const host::Level level : {host::Level::baseline, host::Level::avx2, host::Level::avx512}) {
    if (level > host::supported_level()) continue;
    for (int number = 0; number < 1 << (8 * Bytes); ++number) {
      std::vector<std::byte> codes(kRun + 8, std::byte{0x5a}), wire(16 * Bytes);
      for (std::size_t at = 0; at < wire.size(); ++at) wire[at] = static_cast<std::byte>(number >> (at / 16 * 8));
      host::run<host::UnpackDigits<Base>>(level, {wire.data(), kRun, codes.data()});
      int left = number;
      for (std::size_t row = 0; row < PerNumber; ++row, left /= Base)
        for (std::size_t i = 0; i < 16; ++i)
          ASSERT_EQ(static_cast<std::int8_t>(codes[16 * row + i]),
                    left % Base > kGreatest ? left % Base - Base : left % Base)
              << "number " << number << " of base " << Base;
      ASSERT_EQ(codes[kRun], std::byte{0x5a});
    }
    for (std::size_t count = 0; count <= 2 * kRun + 10; ++count) {
      std::vector<std::byte> codes((count + 15) / 16 * 16, std::byte{7});  // what is past the end is no code
      for (std::size_t i = 0; i < count; ++i)
        codes[i] = static_cast<std::byte>(static_cast<int>(random() % Base) - Base / 2);
      const std::size_t bytes = (count + kRun - 1) / kRun * 16 * Bytes;
      ASSERT_EQ(detail::digit_bytes(Base, count), bytes);
      std::vector<std::byte> wire(bytes + 8, std::byte{0x5a});
      host::run<host::PackDigits<Base>>(level, {codes.data(), count, wire.data()});
      for (std::size_t at = 0; at < bytes; ++at) {
        unsigned expected = 0, power = 1;
        for (std::size_t i = at / (16 * Bytes) * kRun + at % 16, k = 0; k < PerNumber && i < count; ++k, i += 16) {
          const int code = static_cast<std::int8_t>(codes[i]);
          expected += power * static_cast<unsigned>(code < 0 ? code + Base : code);
          power *= Base;
        }
        ASSERT_EQ(std::to_integer<unsigned>(wire[at]), expected >> (at % (16 * Bytes) / 16 * 8) & 255u)
            << count << " codes of base " << Base << ", byte " << at;
      }
      ASSERT_EQ(wire[bytes], std::byte{0x5a});
      std::vector<std::byte> back(codes.size() + 8, std::byte{0x5a});
      host::run<host::UnpackDigits<Base>>(level, {wire.data(), count, back.data()});
      ASSERT_TRUE(std::equal(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(count), back.begin()));
      ASSERT_EQ(back[codes.size()], std::byte{0x5a});
    }
  }
}

TEST(Packing, CodesThatAreDigits) {
  std::mt19937 random(3);
  check_digits<3, 5, 1>(random), check_digits<6, 3, 1>(random), check_digits<9, 5, 2>(random);
}

}  // namespace
}  // namespace tightwire::testing::packing_test
