#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/detail/hd.hpp>

namespace tightwire::host {

/// Memory that is read next. Loops ask for it while they compute, so that who only waits for memory finds it there.
class Upcoming {
 public:
  Upcoming() = default;
  /// From element `at` of each on; null: nothing. What is asked for must lie within the buffers: to ask for memory that
  /// is not there takes a processor hundreds of cycles.
  void data(const void* start, std::size_t at, std::size_t element_size) {
    data_ = place(start, at * element_size);
    element_bytes_ = element_size;
  }
  void sender(const float* start, std::size_t at) { residuals_[0] = place(start, at * sizeof(float)); }
  void owner(const float* start, std::size_t at) { residuals_[1] = place(start, at * sizeof(float)); }

  /// `Count` elements of each, `at` elements further.
  template <int Count>
  TIGHTWIRE_INLINE void ask(std::size_t at) const {
    if (data_ != 0) prefetch<Count>(data_ + at * element_bytes_);
    for (const std::uintptr_t residual : residuals_)
      if (residual != 0) prefetch<Count>(residual + at * sizeof(float));
  }

 private:
  static std::uintptr_t place(const void* start, std::size_t bytes) {
    return start != nullptr ? reinterpret_cast<std::uintptr_t>(start) + bytes : 0;
  }
  template <int Count>
  TIGHTWIRE_INLINE static void prefetch(std::uintptr_t from) {
    TIGHTWIRE_UNROLL(4)
    for (int line = 0; line < Count * 4 / 64; ++line)
      __builtin_prefetch(reinterpret_cast<const void*>(from + static_cast<std::uintptr_t>(64 * line)));
  }

  std::uintptr_t data_ = 0;
  std::size_t element_bytes_ = 0;
  std::uintptr_t residuals_[2] = {0, 0};
};

}  // namespace tightwire::host
