#pragma once
#include <cstddef>

#include <tightwire/detail/hd.hpp>

namespace tightwire::detail {

// Codes of -1, 0 and 1, five to a byte: 3^5 = 243. Of every 80 codes of a block, byte i of 16 has those number i, i +
// 16, ..., i + 64, so that vectors of bytes are packed without moving any; the last run of a block may be shorter, its
// bytes are there all the same.

inline constexpr std::size_t kTritsPerByte = 5;
inline constexpr std::size_t kTritRow = 16;
inline constexpr std::size_t kTritRun = kTritRow * kTritsPerByte;

/// Of a block, or what there is of it.
TIGHTWIRE_HD constexpr std::size_t trit_bytes(std::size_t count) {
  return (count + kTritRun - 1) / kTritRun * kTritRow;
}

/// 0, 1, 2 of a code 0, 1, -1; and back.
TIGHTWIRE_HD constexpr auto trit_digit(const auto& code) { return code + (code >> 31 & 3); }
TIGHTWIRE_HD constexpr auto trit_code(const auto& digit) { return digit - (digit >> 1) * 3; }
/// A third of a byte, rounded down.
TIGHTWIRE_HD constexpr auto third(const auto& byte) { return byte * 171 >> 9; }
/// The first digit of what is left of a byte.
TIGHTWIRE_HD constexpr auto first_digit(const auto& byte) { return byte - third(byte) * 3; }

}  // namespace tightwire::detail
