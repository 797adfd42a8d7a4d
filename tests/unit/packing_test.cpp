#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include <tightwire/detail/pack.hpp>
#include <tightwire/host/level.hpp>

namespace {

using namespace tightwire;

/// The instructions of each level against one element after the other.
template <int W>
void check_packing(std::mt19937& random) {
  using detail::Lanes;
  Lanes<int, W> codes[4], unpacked[4], expected[4];
  std::byte fast[16 * W + 1] = {}, plain[16 * W + 1] = {};
  for (const int bits : {4, 8, 16}) {
    for (int i = 0; i < 4 * W; ++i) {
      const int any = static_cast<int>(random() & ((1u << bits) - 1));
      codes[i / W].v[i % W] = bits == 16 ? any : any - (1 << (bits - 1));
    }
    const auto pack = bits == 4   ? detail::portable::narrow_to_4<W>
                      : bits == 8 ? detail::portable::narrow_to_8<W>
                                  : detail::portable::narrow_to_16<W>;
    const auto unpack = bits == 4   ? detail::portable::widen_from_4<W>
                        : bits == 8 ? detail::portable::widen_from_8<W>
                                    : detail::portable::widen_from_16<W>;
    pack(codes, plain);
    unpack(plain, expected);
    if (bits == 4) detail::narrow_to_4(codes, fast), detail::widen_from_4(plain, unpacked);
    if (bits == 8) detail::narrow_to_8(codes, fast), detail::widen_from_8(plain, unpacked);
    if (bits == 16) detail::narrow_to_16(codes, fast), detail::widen_from_16(plain, unpacked);
    ASSERT_EQ(std::memcmp(fast, plain, sizeof fast), 0) << bits << " bits, " << W << " lanes";
    for (int i = 0; i < 4 * W; ++i) {
      ASSERT_EQ(unpacked[i / W].v[i % W], expected[i / W].v[i % W]) << bits << " bits, " << W << " lanes, " << i;
      ASSERT_EQ(unpacked[i / W].v[i % W], codes[i / W].v[i % W]) << bits << " bits, " << W << " lanes, " << i;
    }
  }
}

TEST(Packing, EqualsOneElementAfterTheOther) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    check_packing<4>(random);
    if (host::supported_level() >= host::Level::avx2) check_packing<8>(random);
    if (host::supported_level() >= host::Level::avx512) check_packing<16>(random);
  }
}

}  // namespace
