#include <xxh_x86dispatch.h>

#include "checksum.hpp"

namespace tightwire::ucx {

std::uint64_t hash(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits_dispatch(bytes.data(), bytes.size());
}

}  // namespace tightwire::ucx
