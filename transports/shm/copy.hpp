#pragma once
#include <cstddef>

namespace tightwire::shm {

/// Bytes from which a copy for another core goes past the caches: there memory is the shorter way between two cores. To
/// get a line that the other core has costs as much as to read it there.
inline constexpr std::size_t kPastCacheFrom = 6'000;

/// Copies what another core will read next. `to` is aligned to a cache line.
void copy_for_peer(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;
/// Of what was written and told of: the caches of this core may pass it on to the one that all share.
void hand_over(const std::byte* at, std::size_t bytes) noexcept;

}  // namespace tightwire::shm
