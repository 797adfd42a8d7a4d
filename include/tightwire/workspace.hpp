#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <tightwire/error.hpp>

namespace tightwire {

/// Zeroed memory that lives as long as its owner: huge pages where the system has them, all pages touched at once, so
/// that no step pays for a page fault. Aligned to a page.
class Workspace {
 public:
  Workspace() = default;
  /// Throws Error(no_memory) with the size.
  explicit Workspace(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    mapped_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw Error(Errc::no_memory, "workspace of " + std::to_string(bytes) + " bytes");
    (void)madvise(at, mapped_, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(at);
    for (std::size_t page = 0; page < bytes; page += 4096) data_[page] = std::byte{0};
  }
  Workspace(Workspace&& other) noexcept { swap(other); }
  Workspace& operator=(Workspace&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Workspace() {
    if (data_ != nullptr) munmap(data_, mapped_);
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  std::span<std::byte> span() const noexcept { return {data_, bytes_}; }
  /// The whole pages that hold it, which hold nothing else.
  std::span<std::byte> pages() const noexcept { return {data_, (bytes_ + 4095) / 4096 * 4096}; }

 private:
  void swap(Workspace& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
  }

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t mapped_ = 0;
};

}  // namespace tightwire
