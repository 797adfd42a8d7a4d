#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace tightwire::ucx {

/// XXH3, 64 bits, with the widest vectors the processor has; the value does not depend on them.
std::uint64_t hash(std::span<const std::byte> bytes) noexcept;

}  // namespace tightwire::ucx
