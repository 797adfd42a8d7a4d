#include <cstring>

#include "copy.hpp"

namespace tightwire::shm {

void copy_for_peer(std::byte* to, const std::byte* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }
void hand_over(const std::byte* /*at*/, std::size_t /*bytes*/) noexcept {}

}  // namespace tightwire::shm
