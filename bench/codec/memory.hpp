#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>

namespace bench {

/// A buffer in huge pages, touched once, so that no page fault is ever measured. Buffers begin at different places
/// within a page: in step with each other they would contend for the same sets of a cache.
class Memory {
 public:
  Memory(std::size_t bytes, std::size_t shift) : bytes_(bytes + kMostShift) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    madvise(memory_, bytes_, MADV_HUGEPAGE);
    std::memset(memory_, 0, bytes_);
    data_ = static_cast<std::byte*>(memory_) + shift % kMostShift;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { munmap(memory_, bytes_); }

  std::byte* bytes() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  static constexpr std::size_t kMostShift = 4096;
  std::size_t bytes_;
  void* memory_;
  std::byte* data_;
};

}  // namespace bench
