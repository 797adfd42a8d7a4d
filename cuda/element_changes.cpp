#include "element_changes.hpp"

#include <cstring>

namespace tightwire::cuda::detail {

ElementChanges::ElementChanges(std::size_t expected, int rank) : rank_(rank) {
  changes_.reserve(expected);
  take_memory(expected);
}

/// To free what was too small waits for the whole device.
void ElementChanges::take_memory(std::size_t changes) {
  const std::size_t bytes = changes * sizeof(ElementChange);
  rooms_.push_back({Memory(bytes, Memory::Kind::pinned, rank_), Memory(bytes, Memory::Kind::device, rank_)});
}

/// Ascending indices are of one run, so that none is there twice.
void ElementChanges::add(Kind kind, std::size_t parameter, std::size_t index, std::uint32_t bits) {
  const bool goes_on = !runs_.empty() && runs_.back().kind == kind && runs_.back().parameter == parameter &&
                       changes_.back().index < index;
  if (!goes_on) runs_.push_back({kind, parameter, changes_.size(), changes_.size()});
  changes_.push_back({static_cast<std::uint32_t>(index), bits});
  runs_.back().end = changes_.size();
}

void ElementChanges::apply(const sparse::Plan& plan, const ReductionInput& input, Stream stream) {
  const std::size_t bytes = changes_.size() * sizeof(ElementChange);
  if (rooms_.back().pinned.size() < bytes) take_memory(changes_.size() + changes_.size() / 2);
  std::byte* const pinned = rooms_.back().pinned.data();
  std::byte* const on_device = rooms_.back().on_device.data();
  if (bytes != 0) {
    std::memcpy(pinned, changes_.data(), bytes);
    require(cudaMemcpyAsync(on_device, pinned, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync", rank_);
    copied_bytes_ += bytes;
  }
  for (std::size_t p = 0; p < plan.parameters.size(); ++p)
    if (const std::size_t size = plan.parameters[p].count * element_bytes(plan.parameters[p].type); size != 0)
      require(cudaMemsetAsync(input.data[p], 0, size, stream), "cudaMemsetAsync", rank_);
  for (const Run& run : runs_) {
    const Residual& residual = input.senders[run.parameter];
    const ChangeJob job{.changes = reinterpret_cast<const ElementChange*>(on_device) + run.begin,
                        .count = run.end - run.begin,
                        .data = static_cast<std::byte*>(input.data[run.parameter]),
                        .type = plan.parameters[run.parameter].type,
                        .before = residual.before,
                        .after = residual.after};
    switch (run.kind) {
      case Kind::element: put_elements(job, rank_, stream); break;
      case Kind::residual: set_residuals(job, rank_, stream); break;
      case Kind::add_residual: add_to_residuals(job, rank_, stream); break;
    }
  }
  changes_.clear();
  runs_.clear();
}

void ElementChanges::leave_memory() noexcept {
  for (Room& room : rooms_) {
    room.pinned.leave();
    room.on_device.leave();
  }
}

}  // namespace tightwire::cuda::detail
