#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tightwire {

/// What reductions did, as measured by themselves; sums over calls. Bytes are of this rank.
struct Statistics {
  std::uint64_t calls = 0;
  std::uint64_t gradient_bytes = 0;  ///< the buffers as the trainer holds them
  std::uint64_t sent_bytes = 0;      ///< frames put on the wire, headers included
  std::uint64_t received_bytes = 0;
  double encode_seconds = 0;    ///< contributions -> wire
  double combine_seconds = 0;   ///< sum of contributions -> wire
  double decode_seconds = 0;    ///< wire -> buffers
  double wire_seconds = 0;      ///< under way with nothing of the above to do
  double blocked_seconds = 0;   ///< the trainer's thread waited for us
  std::uint64_t nonfinite = 0;  ///< NaN or infinite elements met on all ranks, contributions and sums

  Statistics& operator+=(const Statistics& other) {
    calls += other.calls;
    gradient_bytes += other.gradient_bytes;
    sent_bytes += other.sent_bytes;
    received_bytes += other.received_bytes;
    encode_seconds += other.encode_seconds;
    combine_seconds += other.combine_seconds;
    decode_seconds += other.decode_seconds;
    wire_seconds += other.wire_seconds;
    blocked_seconds += other.blocked_seconds;
    nonfinite += other.nonfinite;
    return *this;
  }
};

/// The reductions between two ends of a step (commit or rollback). Here `wire_seconds` is the part of `busy_seconds`
/// with nothing to encode, combine or decode; those of reductions side by side add up to more.
struct StepStatistics : Statistics {
  double step_seconds = 0;
  double busy_seconds = 0;  ///< with reductions under way, however many
  /// Part of the step for which the trainer waited for communication.
  double communication_share() const { return step_seconds > 0 ? blocked_seconds / step_seconds : 0; }

  /// A reduction that ended, of which so many seconds were not counted with others.
  void add(const Statistics& reduction, double busy) {
    Statistics::operator+=(reduction);
    busy_seconds += busy;
    wire_seconds = std::max(0.0, busy_seconds - encode_seconds - combine_seconds - decode_seconds);
  }
  /// Steps behind this one.
  StepStatistics& operator+=(const StepStatistics& later) {
    Statistics::operator+=(later);
    step_seconds += later.step_seconds;
    busy_seconds += later.busy_seconds;
    return *this;
  }
};

}  // namespace tightwire
