#pragma once
// Headers of frames on a device, where the host does not see them.
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/cuda.hpp>
#include <tightwire/detail/hd.hpp>
#include <tightwire/frame.hpp>

namespace tightwire::cuda::detail {

/// What kernels tell the host of a bucket, in pinned memory. Read once the reduction has ended.
struct Report {
  std::uint64_t nonfinite;  ///< of all reductions so far, and of all ranks
  std::uint64_t refused;    ///< frames that were not what they had to be
  FrameHeader got;          ///< of the first of them, and what it had to be
  FrameHeader expected;
};

/// Frames that lie side by side, one per rank.
struct Frames {
  std::byte* first;
  std::size_t stride;
};
/// Ranks that a job is about.
struct RankSet {
  std::uint64_t words[Coder::kMostSources / 64];
};
TIGHTWIRE_HD constexpr bool holds(const RankSet& set, unsigned rank) {
  return (set.words[rank / 64] >> rank % 64 & 1) != 0;
}
constexpr void insert(RankSet& set, std::size_t rank) { set.words[rank / 64] |= std::uint64_t{1} << rank % 64; }

/// The kernels of what follows, so that none is loaded while something runs.
void load_frame_kernels(int rank);

/// Before anything is encoded: headers of our contributions and of our result, and nothing was counted yet. Coders add
/// to the count in a contribution's header.
struct BeginJob {
  FrameHeader contribution, result;
  Frames contributions;
  unsigned count;  ///< of contributions
  std::byte* result_frame;
  tightwire::Coder::NonFinite* met;
};
void begin_frames(const BeginJob& job, int rank, Stream stream);

/// Compares the headers of what came with what they must be, but for the sender, and adds up what they counted, and
/// what we met ourselves.
struct CheckJob {
  FrameHeader expected;
  Frames received;
  RankSet from;
  unsigned ranks;
  tightwire::Coder::NonFinite* met;  ///< may be null
  const std::byte* own_frame;        ///< whose count belongs to it too; may be null
  std::byte* into_frame;             ///< whose header gets the sum; null: the report
  Report* report;
};
void check_frames(const CheckJob& job, int rank, Stream stream);

}  // namespace tightwire::cuda::detail
