#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ring.hpp"
#include "stream.hpp"

namespace tightwire::shm {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;
/// Of one machine. Every rank has a ring and a stream from each.
inline constexpr int kMostRanks = 1024;

/// What a rank's memory file begins with.
struct SegmentHead {
  std::uint64_t word;  ///< see Peer::word
  /// Threads of this rank that sleep until its bell is rung by who has news for it: for the peers; it counts by itself.
  alignas(kLine) std::atomic<std::uint32_t> sleepers;
  /// Whether this rank could open what the others share: 0 until it is known, then one more than the Errc; and why not.
  alignas(kLine) std::atomic<std::uint32_t> outcome;
  std::array<char, 1024> outcome_text;
};
static_assert(sizeof(SegmentHead) <= kPage);

/// A memory file: the head, then from every rank a ring and a stream, then attached memory up to the end.
class SegmentLayout {
 public:
  explicit SegmentLayout(int ranks) noexcept
      : ranks_(static_cast<std::size_t>(ranks)),
        stream_bytes_(std::clamp<std::size_t>(std::bit_floor((std::size_t{4} << 20) / ranks_), std::size_t{16} << 10,
                                              std::size_t{256} << 10)) {}

  std::size_t stream_bytes() const noexcept { return stream_bytes_; }
  std::size_t ring_at(int from) const noexcept { return kPage + static_cast<std::size_t>(from) * inbox_bytes(); }
  std::size_t stream_at(int from) const noexcept { return ring_at(from) + sizeof(Ring); }
  std::size_t stream_data_at(int from) const noexcept { return stream_at(from) + sizeof(Stream); }
  /// Where attached memory begins.
  std::size_t control_bytes() const noexcept {
    return (ring_at(static_cast<int>(ranks_)) + kHugePage - 1) / kHugePage * kHugePage;
  }

 private:
  std::size_t inbox_bytes() const noexcept {
    return (sizeof(Ring) + sizeof(Stream) + stream_bytes_ + kPage - 1) / kPage * kPage;
  }

  std::size_t ranks_;
  std::size_t stream_bytes_;
};

}  // namespace tightwire::shm
