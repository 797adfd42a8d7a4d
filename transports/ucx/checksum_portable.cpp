#include <xxhash.h>

#include "checksum.hpp"

namespace tightwire::ucx {

std::uint64_t hash(std::span<const std::byte> bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace tightwire::ucx
