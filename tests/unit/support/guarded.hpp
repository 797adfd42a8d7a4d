#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

/// A buffer that begins at an odd place and has known bytes before, in and after it.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t offset, std::uint8_t fill)
      : bytes_(bytes), offset_(kGuard + offset), fill_(fill), memory_(bytes + offset_ + kGuard, std::byte{fill}) {}

  std::byte* data() { return memory_.data() + offset_; }
  float* floats() { return reinterpret_cast<float*>(data()); }
  template <class T>
  void set(const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(data(), values.data(), bytes_);
  }
  /// The content; nothing around it may have changed.
  std::vector<std::byte> bytes() const {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (i < offset_ || i >= offset_ + bytes_) {
        EXPECT_EQ(memory_[i], std::byte{fill_}) << "written beside the buffer";
      }
    return {memory_.begin() + static_cast<std::ptrdiff_t>(offset_),
            memory_.begin() + static_cast<std::ptrdiff_t>(offset_ + bytes_)};
  }

 private:
  static constexpr std::size_t kGuard = 128;
  std::size_t bytes_, offset_;
  std::uint8_t fill_;
  std::vector<std::byte> memory_;
};

inline void expect_same(const std::vector<std::byte>& actual, const std::vector<std::byte>& expected,
                        std::string_view what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const auto [a, b] = std::mismatch(actual.begin(), actual.end(), expected.begin());
  if (a != actual.end()) {
    ADD_FAILURE() << what << ": byte " << a - actual.begin() << " of " << actual.size() << " is "
                  << std::to_integer<int>(*a) << " and should be " << std::to_integer<int>(*b);
  }
}
