#pragma once
#include <cstddef>
#include <utility>

namespace tightwire::cuda::detail {

/// Places in one piece of memory, each on 256 bytes; null to find out how much that is.
class Places {
 public:
  explicit Places(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = std::exchange(bytes_, bytes_ + (count * sizeof(T) + 255) / 256 * 256);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace tightwire::cuda::detail
