#include "element_changes.hpp"

#include <cstring>

namespace tightwire::cuda::detail {

ElementChanges::ElementChanges(std::size_t expected, int rank) : rank_(rank) {
  changes_.reserve(expected);
  take_memory(expected * sizeof(ElementChange));
}

/// To free what was too small waits for the whole device.
void ElementChanges::take_memory(std::size_t bytes) {
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

/// Into as few phases as can be: a residual that was changed comes again in the next.
void ElementChanges::divide(std::size_t parameters) {
  phases_.clear();
  last_.assign(parameters, {0, 0});
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const Run& run = runs_[r];
    Last& last = last_[run.parameter];
    const bool of_residual = run.kind == Kind::residual || run.kind == Kind::add_residual;
    const bool again = of_residual && last.phase == phases_.size() && changes_[run.begin].index <= last.index;
    if (r == 0 || again) phases_.push_back({r, r});
    phases_.back().end = r + 1;
    if (of_residual) last = {phases_.size(), changes_[run.end - 1].index};
  }
}

/// Changes, and behind them their runs. Returns where the latter begin.
std::size_t ElementChanges::put(const sparse::Plan& plan, const ReductionInput& input, Stream stream) {
  table_.clear();
  for (const Run& run : runs_) {
    const Residual& residual = run.kind == Kind::momentum ? input.momenta[run.parameter] : input.senders[run.parameter];
    table_.push_back({.first = run.begin,
                      .kind = run.kind,
                      .type = plan.parameters[run.parameter].type,
                      .data = static_cast<std::byte*>(input.data[run.parameter]),
                      .before = residual.before,
                      .after = residual.after});
  }
  const std::size_t of_changes = changes_.size() * sizeof(ElementChange), of_runs = runs_.size() * sizeof(ChangeRun);
  const std::size_t bytes = of_changes + of_runs;
  if (rooms_.back().pinned.size() < bytes) take_memory(bytes + bytes / 2);
  const Room& room = rooms_.back();
  std::memcpy(room.pinned.data(), changes_.data(), of_changes);
  std::memcpy(room.pinned.data() + of_changes, table_.data(), of_runs);
  require(cudaMemcpyAsync(room.on_device.data(), room.pinned.data(), bytes, cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync", rank_);
  copied_bytes_ += bytes;
  return of_changes;
}

void ElementChanges::apply(const sparse::Plan& plan, const ReductionInput& input, Stream stream) {
  for (std::size_t p = 0; p < plan.parameters.size(); ++p)
    if (const std::size_t size = plan.parameters[p].count * element_bytes(plan.parameters[p].type); size != 0)
      require(cudaMemsetAsync(input.data[p], 0, size, stream), "cudaMemsetAsync", rank_);
  if (changes_.empty()) return;
  const std::size_t of_changes = put(plan, input, stream);
  divide(plan.parameters.size());
  const std::byte* const on_device = rooms_.back().on_device.data();
  for (const Phase& phase : phases_)
    change_elements({.changes = reinterpret_cast<const ElementChange*>(on_device),
                     .begin = runs_[phase.begin].begin,
                     .end = runs_[phase.end - 1].end,
                     .runs = reinterpret_cast<const ChangeRun*>(on_device + of_changes) + phase.begin,
                     .run_count = static_cast<std::uint32_t>(phase.end - phase.begin)},
                    rank_, stream);
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
