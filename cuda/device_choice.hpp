#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/sparse/sample.hpp>
#include <tightwire/sparse/section_writer.hpp>

#include "choice_kernels.hpp"
#include "resources.hpp"

namespace tightwire::cuda::detail {

/// Residual += gradient, or momentum, on a device, and the elements of largest magnitude brought to the host: places
/// and values, of at most k elements. Takes memory of the current device.
class DeviceChoice {
 public:
  /// The plan and the streams must live as long. `copies`: for what is copied when the host asks for it, within
  /// `timeout`.
  DeviceChoice(const sparse::Plan& plan, const MomentumOnDevice& momentum, int rank, Stream copies,
               std::chrono::milliseconds timeout);

  /// Puts the choice on a stream. The input stays until it was exchanged.
  void begin(const ReductionInput& input, Stream stream);
  /// Whether the stream has come to its end; then what was chosen may be read, until the next one begins.
  bool ended() const { return ended_.reached(rank_); }
  /// By group. What was chosen is taken out of the residuals, as if it arrived as it is, and of momenta, if they are
  /// masked.
  std::span<const sparse::Choice> read();
  /// Elements that were not finite and not chosen, and of which no trace is left. After `read`.
  std::uint64_t forgotten() const { return forgotten_; }

  /// Sums of gradient and residual, of all elements of a piece whose group sends everything: they came with the choice.
  void read_all(const sparse::Piece& piece, std::span<float> values) const;
  /// The same of another piece; only those that were not chosen are right. Waits for a copy. Throws Error(timeout).
  void copy_all(const sparse::Piece& piece, std::span<float> values);

  /// Bytes that came to the host so far.
  std::uint64_t copied_bytes() const { return copied_bytes_; }
  /// It stays, for a device that does not come to an end.
  void leave_memory() noexcept;

 private:
  struct GroupMemory {
    ChoiceGroup on_device;  ///< what does not change
    ChoiceState* state;     ///< pinned, as are those below
    std::uint32_t* places;
    float* values;
    std::size_t chosen;  ///< k of this use
    bool everything;
    std::size_t room;  ///< elements that may be chosen in this use
    // Of a choice by the threshold of a sample.
    float* sample;  ///< on the device, as are those below
    ChoiceState* of_sample;
    std::uint32_t* bins_of_sample;
    std::optional<sparse::Sample> places_of_sample;  ///< of this use
  };
  /// Where sums of gradient and residual are, on the device.
  struct Sums {
    const std::byte* data;
    ElementType type;
  };
  Sums sums_of(std::size_t parameter) const;
  bool samples(const sparse::Group& group) const;
  std::size_t room_of(const sparse::Group& group, std::uint64_t committed) const;
  void begin_sample(GroupMemory& memory, const sparse::Group& group);
  void tabulate_sample(const GroupMemory& memory, ChoiceGroup& group);
  static void place_sample(const sparse::Sample& sample, ChoiceSource& source);
  std::uint32_t tiles_of(const sparse::Group& group) const;
  void take_memory();
  void tabulate(bool everything);
  void put_table(Stream stream);
  void bring(const GroupMemory& memory, Stream stream);
  void bring_all(const sparse::Group& group, Stream stream);
  void copy(void* to, const void* from, std::size_t bytes, Stream stream);

  const sparse::Plan& plan_;
  MomentumOnDevice momentum_;
  int rank_;
  std::chrono::milliseconds timeout_;
  Memory on_device_, pinned_;
  std::vector<Memory> whole_;       ///< pinned, for pieces; the last is in use
  std::vector<std::byte*> all_of_;  ///< pinned, by parameter: all its sums; null where everything is never sent
  Stream copies_;
  Event ended_;
  std::vector<GroupMemory> groups_;
  ChoiceTable table_{}, samples_{};
  std::byte* table_on_device_ = nullptr;
  std::vector<ChoiceGroup> table_groups_, sample_groups_;
  std::vector<ChoiceSource> table_sources_, sample_sources_;
  std::byte* table_pinned_ = nullptr;
  std::vector<sparse::Choice> choices_;
  std::uint64_t forgotten_ = 0, copied_bytes_ = 0;
  ReductionInput input_{};
};

}  // namespace tightwire::cuda::detail
