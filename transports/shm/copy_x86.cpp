#include <emmintrin.h>

#include <cstring>

#include "copy.hpp"

namespace tightwire::shm {
namespace {

constexpr std::size_t kCacheLine = 64;

}  // namespace

void copy_for_peer(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes < kPastCacheFrom) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::size_t done = 0;
  for (; done + kCacheLine <= bytes; done += kCacheLine)
    for (std::size_t part = done; part < done + kCacheLine; part += sizeof(__m128i))
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
}

void hand_over(const std::byte* at, std::size_t bytes) noexcept {
  if (bytes >= kPastCacheFrom) return;
  // CPUs that do not know the instruction take it for none.
  for (std::size_t line = 0; line < bytes; line += kCacheLine) asm volatile("cldemote %0" : : "m"(at[line]));
}

}  // namespace tightwire::shm
