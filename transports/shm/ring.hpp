#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "copy.hpp"

namespace tightwire::shm {

inline constexpr std::size_t kLine = 64;
/// Bytes of a ring, a power of two.
inline constexpr std::size_t kRingBytes = std::size_t{64} << 10;
/// Bytes of the longest message that travels in a ring: what an all-reduce in one round sends, and its header.
inline constexpr std::size_t kLargestInline = (std::size_t{16} << 10) + 256;

/// What a record in a ring says.
enum class RecordKind : std::uint32_t {
  skip = 1,      ///< nothing: the next record is at the begin of the ring
  bytes,         ///< a message, whose bytes lie behind the record
  offer,         ///< a message, whose bytes lie in the sender's memory file
  staged_offer,  ///< a message, whose bytes the sender puts into the stream when they are wanted
  taken,         ///< the bytes of an offer are not needed any more
  wanted,        ///< the next bytes of the stream shall be those of a staged_offer
};

struct RecordFields {
  RecordKind kind = RecordKind::skip;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< of an offer: in the file
  std::uint64_t id = 0;      ///< of an offer, for its answer
};

/// One line in shared memory. `commit` is one more than its place in all that was ever written, once it is complete.
struct alignas(kLine) Record {
  std::atomic<std::uint64_t> commit;
  RecordFields fields;
};
static_assert(sizeof(Record) == kLine && std::atomic<std::uint64_t>::is_always_lock_free);

/// A ring in shared memory, in the segment of its reader. Zeroed memory is an empty one.
struct alignas(kLine) Ring {
  std::atomic<std::uint64_t> tail;  ///< up to where the reader is done; written by it
  alignas(kLine) std::byte data[kRingBytes];
};

inline constexpr std::size_t record_length(std::size_t payload_bytes) noexcept {
  return sizeof(Record) + (payload_bytes + kLine - 1) / kLine * kLine;
}
/// What a reader may hold of a ring that it has read to the end: the rest has room for the longest record wherever the
/// next one begins, since what is skipped at the ring's end is shorter than the record by a line.
inline constexpr std::size_t kMostHeld = kRingBytes - 2 * record_length(kLargestInline);
static_assert(kRingBytes > 2 * record_length(kLargestInline), "one early message must not fill a ring");
inline Record* record_at(Ring& ring, std::uint64_t position) noexcept {
  return reinterpret_cast<Record*>(ring.data + position % kRingBytes);
}

/// One rank's end of a ring to another.
class RingWriter {
 public:
  explicit RingWriter(Ring* ring) noexcept : ring_(ring) {}

  /// False where there is no room yet. Whatever the reader does to the shared memory, nothing outside it is written.
  bool push(const RecordFields& fields, const std::byte* payload, std::size_t payload_bytes) noexcept {
    const std::size_t length = record_length(payload_bytes);
    const std::size_t skipped = skipped_for(length);
    // Behind a record the place of the next one's word must be free, too: it is cleared before the record is told of.
    if (!has_room(skipped + length + kLine)) return false;
    if (skipped != 0) {
      record_at(*ring_, head_)->fields = {};
      commit(skipped);
    }
    Record* const record = record_at(*ring_, head_);
    record->fields = fields;
    if (payload_bytes != 0)
      copy_for_peer(reinterpret_cast<std::byte*>(record) + sizeof(Record), payload, payload_bytes);
    commit(length);
    hand_over(reinterpret_cast<std::byte*>(record), length);
    return true;
  }
  /// Whether the place that the reader told of, as last looked at, can be.
  bool is_sound() const noexcept { return head_ - tail_ <= kRingBytes; }
  /// Whether `push` would find room.
  bool can_push(std::size_t payload_bytes) const noexcept {
    const std::size_t length = record_length(payload_bytes);
    const std::uint64_t tail = ring_->tail.load(std::memory_order_acquire);
    return head_ + skipped_for(length) + length + kLine - tail <= kRingBytes;
  }

 private:
  std::size_t skipped_for(std::size_t length) const noexcept {
    const std::size_t to_end = kRingBytes - head_ % kRingBytes;
    return length > to_end ? to_end : 0;
  }
  bool has_room(std::size_t bytes) noexcept {
    if (head_ + bytes - tail_ <= kRingBytes) return true;
    tail_ = ring_->tail.load(std::memory_order_acquire);
    return head_ + bytes - tail_ <= kRingBytes;
  }
  void commit(std::size_t length) noexcept {
    record_at(*ring_, head_ + length)->commit.store(0, std::memory_order_relaxed);
    record_at(*ring_, head_)->commit.store(head_ + 1, std::memory_order_release);
    head_ += length;
  }

  Ring* ring_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  ///< as last seen
};

/// The other end. Records are read in order; what they hold may stay in the ring for a while and be let go in any
/// order.
class RingReader {
 public:
  /// A record that was read.
  struct Entry {
    RecordFields fields;
    const std::byte* payload;
    std::uint64_t number;  ///< by which it is let go
  };

  explicit RingReader(Ring* ring) : ring_(ring), entries_(kRingBytes / kLine) {}

  bool has_next() const noexcept {
    return record_at(*ring_, cursor_)->commit.load(std::memory_order_acquire) == cursor_ + 1;
  }
  /// The record that `has_next` saw, which `is_sound` must be asked about: it is as the peer wrote it.
  Entry next() noexcept {
    const Record* const record = record_at(*ring_, cursor_);
    Entry entry{record->fields, reinterpret_cast<const std::byte*>(record) + sizeof(Record), next_entry_};
    const std::size_t to_end = kRingBytes - cursor_ % kRingBytes;
    const std::uint64_t payload = entry.fields.kind == RecordKind::bytes ? entry.fields.bytes : 0;
    sound_ = payload <= kLargestInline && record_length(payload) <= to_end;
    if (!sound_) return entry;
    cursor_ += entry.fields.kind == RecordKind::skip ? to_end : record_length(payload);
    entries_[next_entry_++ % entries_.size()] = {cursor_, false};
    return entry;
  }
  bool is_sound() const noexcept { return sound_; }
  void let_go(std::uint64_t number) noexcept {
    entries_[number % entries_.size()].is_free = true;
    std::uint64_t tail = tail_;
    while (oldest_entry_ != next_entry_ && entries_[oldest_entry_ % entries_.size()].is_free)
      tail = entries_[oldest_entry_++ % entries_.size()].end;
    if (tail == tail_) return;
    tail_ = tail;
    ring_->tail.store(tail, std::memory_order_release);
  }
  /// Bytes that what was read and not let go keeps from being written again.
  std::size_t held_bytes() const noexcept { return cursor_ - tail_; }
  /// Whether a writer may have waited for what became free since this was last true. Where less than `kMostHeld` was
  /// written since, it found room for everything.
  bool freed_much() noexcept {
    if (tail_ == told_ || cursor_ - told_ <= kMostHeld) return false;
    told_ = tail_;
    return true;
  }

 private:
  struct Span {
    std::uint64_t end = 0;
    bool is_free = false;
  };

  Ring* ring_;
  std::vector<Span> entries_;  ///< those read and not let go, and free ones between them
  std::uint64_t oldest_entry_ = 0;
  std::uint64_t next_entry_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t told_ = 0;  ///< the tail when `freed_much` was last true
  bool sound_ = true;
};

}  // namespace tightwire::shm
