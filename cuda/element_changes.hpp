#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/sparse/plan.hpp>

#include "choice_kernels.hpp"
#include "resources.hpp"

namespace tightwire::cuda::detail {

/// What the host has found out about elements of gradients and residuals on a device, and their way there: one copy and
/// one kernel, but for elements that are changed again.
class ElementChanges {
 public:
  using Kind = ChangeKind;

  /// Room for so many at first.
  ElementChanges(std::size_t expected, int rank);

  void add(Kind kind, std::size_t parameter, std::size_t index, std::uint32_t bits);
  /// Puts them on a stream, in their order: the buffers hold nothing else. None are left.
  void apply(const sparse::Plan& plan, const ReductionInput& input, Stream stream);

  /// Bytes that went to the device so far.
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  /// It stays, for a device that does not come to an end.
  void leave_memory() noexcept;

 private:
  /// Of one parameter and kind, no element twice.
  struct Run {
    Kind kind;
    std::size_t parameter, begin, end;
  };
  struct Room {
    Memory pinned, on_device;
  };
  /// What a kernel changes, as numbers of runs.
  struct Phase {
    std::size_t begin, end;
  };
  void take_memory(std::size_t bytes);
  void divide(std::size_t parameters);
  std::size_t put(const sparse::Plan& plan, const ReductionInput& input, Stream stream);

  int rank_;
  std::vector<ElementChange> changes_;
  std::vector<Run> runs_;
  std::vector<ChangeRun> table_;  ///< of runs
  std::vector<Phase> phases_;
  /// By parameter, of residuals: the last element that was changed, and in which phase, counted from 1.
  struct Last {
    std::size_t phase;
    std::uint32_t index;
  };
  std::vector<Last> last_;
  std::vector<Room> rooms_;  ///< the last is in use; earlier ones were too small
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace tightwire::cuda::detail
