#pragma once
// Elements that are drawn at random, as RandomReduction draws, gathers and scatters them on the host.
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/cuda.hpp>

namespace tightwire::cuda::detail {

/// One element out of each of `runs` runs of a parameter: sparse::draw.
struct DrawnElements {
  std::uint64_t seed;
  std::uint32_t use, parameter;
  std::uint64_t elements, runs;
  std::uint32_t* indices;  ///< [runs], ascending
};

/// The kernels of what follows, so that none is loaded while something runs.
void load_random_kernels(int rank);

/// Draws, and takes what was drawn. With a residual the sum of both, without one `weight` times the element.
struct GatherJob {
  DrawnElements drawn;
  const std::byte* data;
  ElementType type;
  const float* before;  ///< may be null
  float weight;
  float* values;  ///< [runs]
};
void gather_drawn(const GatherJob& job, int rank, Stream stream);

/// All elements into the residual, but for those that were drawn: two kernels. What is not finite leaves no trace, and
/// is counted unless it was drawn.
struct KeepJob {
  DrawnElements drawn;
  const std::byte* data;
  ElementType type;
  const float* values;  ///< [runs] of what was drawn
  const float* before;
  float* after;  ///< may be `before`
  unsigned long long* forgotten;
};
void keep_undrawn(const KeepJob& job, int rank, Stream stream);

/// Means of what was drawn to their places in a buffer of zeros, and what was lost on the way into the residual.
struct ScatterJob {
  DrawnElements drawn;
  std::byte* data;
  ElementType type;
  const float* values;
  const float* before;      ///< the residual, where a mean is not finite
  float* residual;          ///< after; may be null, or `before`
  const float* lost;        ///< [runs] by our contribution; null: nothing
  const float* owner_lost;  ///< [own_count] by sums that are ours; null: nothing
  std::uint64_t own_begin, own_count;
  float divisor;
  unsigned long long* overflows;  ///< finite means that the buffer cannot hold
};
void scatter_drawn(const ScatterJob& job, int rank, Stream stream);

/// Adds to a number in pinned memory, and makes the counter 0.
void report_drawn(unsigned long long* counter, std::uint64_t* reported, int rank, Stream stream);

}  // namespace tightwire::cuda::detail
