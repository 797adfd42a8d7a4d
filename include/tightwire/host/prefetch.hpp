#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/detail/hd.hpp>

namespace tightwire::host {

/// Memory that will be read soon, asked for while something else is computed.
class Soon {
 public:
  Soon() = default;
  Soon(const void* at, std::size_t element_bytes)
      : at_(reinterpret_cast<std::uintptr_t>(at)), element_bytes_(element_bytes) {}

  /// The next `Count` elements; they may lie past the end of the buffer, since a hint harms nothing.
  template <int Count>
  TIGHTWIRE_INLINE void ask() {
    if (at_ == 0) return;
    TIGHTWIRE_UNROLL(4)
    for (int line = 0; line < Count * 4 / 64; ++line)
      __builtin_prefetch(reinterpret_cast<const void*>(at_ + static_cast<std::uintptr_t>(64 * line)));
    at_ += Count * element_bytes_;
  }

 private:
  std::uintptr_t at_ = 0;
  std::size_t element_bytes_ = 0;
};

}  // namespace tightwire::host
