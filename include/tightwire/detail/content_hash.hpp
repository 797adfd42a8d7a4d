#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tightwire::detail {

/// 64 bits of any bytes, at the speed of memory; a change within one word of eight bytes, counted from the first byte,
/// changes it for sure. Names things; protects nothing.
inline std::uint64_t content_hash(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kPrime = 0x9E3779B185EBCA87u;
  constexpr std::size_t kLanes = 8, kStride = kLanes * sizeof(std::uint64_t);
  const auto mixed = [](std::uint64_t state, std::uint64_t word) { return std::rotl((state ^ word) * kPrime, 29); };
  std::array<std::uint64_t, kLanes> lanes{1, 2, 3, 4, 5, 6, 7, 8};
  const auto add = [&](const std::byte* at) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), at, kStride);
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
  };
  std::size_t at = 0;
  for (; bytes.size() - at >= kStride; at += kStride) add(bytes.data() + at);
  std::array<std::byte, kStride> rest{};
  if (at < bytes.size()) std::memcpy(rest.data(), bytes.data() + at, bytes.size() - at);
  add(rest.data());
  std::uint64_t hash = bytes.size();
  for (const std::uint64_t lane : lanes) hash = mixed(hash, lane);
  return hash ^ hash >> 32;
}

}  // namespace tightwire::detail
