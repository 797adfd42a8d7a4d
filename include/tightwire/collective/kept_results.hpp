#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tightwire/plan.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire {

/// Payloads of the results of an all-reduce, as they were encoded, for another collective to pass on: by chunk, of a
/// chunk those of all owners in order. All memory is taken at construction, as much as one rank's encoded bucket.
class KeptResults {
 public:
  explicit KeptResults(const BucketPlan& plan) : plan_(plan), nonfinite_(plan.chunks.size()) {
    std::size_t bytes = 0;
    for (const Chunk& chunk : plan.chunks) {
      begins_.push_back(bytes);
      for (const Share& share : chunk.shares) bytes += share.payload_bytes;
    }
    begins_.push_back(bytes);
    memory_ = Workspace(bytes);
  }

  /// For the next use: nothing is known of it.
  void clear() { nonfinite_.assign(nonfinite_.size(), 0); }

  /// The payload of an owner's share, and how many elements that went into it, or came out, are not finite.
  void keep(std::size_t chunk, std::size_t owner, const std::byte* payload, std::uint64_t nonfinite) {
    const std::vector<Share>& shares = plan_.chunks[chunk].shares;
    std::size_t at = begins_[chunk];
    for (std::size_t before = 0; before < owner; ++before) at += shares[before].payload_bytes;
    std::memcpy(memory_.data() + at, payload, shares[owner].payload_bytes);
    nonfinite_[chunk] += nonfinite;
  }

  std::span<const std::byte> chunk(std::size_t number) const {
    return {memory_.data() + begins_[number], begins_[number + 1] - begins_[number]};
  }
  std::uint64_t nonfinite(std::size_t chunk) const { return nonfinite_[chunk]; }
  std::size_t bytes() const { return begins_.back(); }

 private:
  const BucketPlan& plan_;
  std::vector<std::size_t> begins_;
  std::vector<std::uint64_t> nonfinite_;
  Workspace memory_;
};

}  // namespace tightwire
