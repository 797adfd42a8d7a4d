#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ring.hpp"

namespace tightwire::shm {

/// Bytes that pass through shared memory from one rank to another, in the segment of the reader: those of messages
/// whose memory the reader cannot see. `data` has so many bytes, a power of two.
struct alignas(kLine) Stream {
  alignas(kLine) std::atomic<std::uint64_t> head;  ///< written so far
  alignas(kLine) std::atomic<std::uint64_t> tail;  ///< read so far
};

/// One end of a Stream.
class StreamEnd {
 public:
  StreamEnd(Stream* stream, std::byte* data, std::size_t capacity) noexcept
      : stream_(stream), data_(data), capacity_(capacity) {}

  /// As many bytes as there is room for; a quarter of the stream at most, so that the reader can begin meanwhile.
  std::size_t write(const std::byte* from, std::size_t bytes) noexcept {
    const std::uint64_t used = position_ - stream_->tail.load(std::memory_order_acquire);
    is_sound_ = used <= capacity_;
    if (!is_sound_) return 0;
    const std::size_t count = std::min({bytes, static_cast<std::size_t>(capacity_ - used), capacity_ / 4});
    copy(count,
         [&](std::size_t at, std::size_t done, std::size_t part) { std::memcpy(data_ + at, from + done, part); });
    if (count != 0) stream_->head.store(position_, std::memory_order_release);
    return count;
  }
  bool can_write() const noexcept { return position_ - stream_->tail.load(std::memory_order_acquire) < capacity_; }

  /// As many bytes as there are.
  std::size_t read(std::byte* to, std::size_t bytes) noexcept {
    const std::uint64_t there = stream_->head.load(std::memory_order_acquire) - position_;
    is_sound_ = there <= capacity_;
    if (!is_sound_) return 0;
    const std::size_t count = std::min({bytes, static_cast<std::size_t>(there), capacity_ / 4});
    copy(count, [&](std::size_t at, std::size_t done, std::size_t part) { std::memcpy(to + done, data_ + at, part); });
    if (count != 0) stream_->tail.store(position_, std::memory_order_release);
    return count;
  }
  bool can_read() const noexcept { return stream_->head.load(std::memory_order_acquire) != position_; }

  /// Whether the place that the peer told of, as last looked at, can be.
  bool is_sound() const noexcept { return is_sound_; }

 private:
  /// In up to two parts, since it goes round.
  template <class Part>
  void copy(std::size_t count, const Part& part) noexcept {
    const std::size_t at = position_ % capacity_;
    const std::size_t first = std::min(count, capacity_ - at);
    if (first != 0) part(at, 0, first);
    if (count != first) part(0, first, count - first);
    position_ += count;
  }

  Stream* stream_;
  std::byte* data_;
  std::size_t capacity_;
  std::uint64_t position_ = 0;
  bool is_sound_ = true;
};

}  // namespace tightwire::shm
