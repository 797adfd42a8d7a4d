#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tightwire::rendezvous {

/// Appends a number as four bytes, least significant first.
inline void put_u32(std::string& bytes, std::uint32_t value) {
  for (unsigned shift = 0; shift < 32; shift += 8) bytes += static_cast<char>((value >> shift) & 0xffU);
}

/// The first four bytes as a number; the caller has checked that they are there.
inline std::uint32_t get_u32(std::string_view bytes) noexcept {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) {
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

}  // namespace tightwire::rendezvous
