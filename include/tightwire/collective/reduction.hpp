#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tightwire/coder.hpp>
#include <tightwire/detail/float_environment.hpp>
#include <tightwire/frame.hpp>
#include <tightwire/state.hpp>
#include <tightwire/statistics.hpp>

namespace tightwire {

/// One use of a Reduction: buffers and residuals by position of the parameter in it.
struct ReductionInput {
  std::span<void* const> data;
  std::span<const Residual> senders;
  Residual owner;
  std::uint64_t step;                      ///< steps ended before
  std::uint8_t rollbacks;                  ///< how many of them were rolled back, modulo 256
  std::uint32_t sequence;                  ///< reductions of this bucket before, those of steps rolled back too
  std::uint32_t use = 0;                   ///< without those: what is drawn at random goes by it
  std::uint64_t seed = 0;                  ///< of stochastic rounding
  std::uint64_t committed = 0;             ///< steps ended before and not rolled back
  std::uint64_t nonfinite = 0;             ///< elements of ours that were not finite, and are not in the data any more
  std::span<const Residual> momenta = {};  ///< of momentum correction; empty without
  std::span<const Residual> stages = {};   ///< of the stages of a hierarchy; empty without
  std::uint64_t scaled = 0;                ///< names what residuals were scaled and gradients multiplied by; 0: none
};

/// What the frames of one reduction say about themselves.
struct FrameIdentity {
  std::uint64_t fingerprint = 0;
  std::uint32_t channel = 0;  ///< of this reduction alone
  std::uint32_t bucket = 0;
  std::uint32_t first_chunk = 0;  ///< of several reductions of a bucket on a channel, where its chunks are counted from

  FrameHeader header(const ReductionInput& input, FrameKind kind, std::size_t sender, std::size_t chunk) const {
    return {.checksum = 0,
            .magic = kFrameMagic,
            .version = static_cast<std::uint16_t>(kWireVersion),
            .kind = static_cast<std::uint8_t>(kind),
            .rollbacks = input.rollbacks,
            .fingerprint = fingerprint ^ input.scaled,
            .step = input.step,
            .bucket = bucket,
            .chunk = first_chunk + static_cast<std::uint32_t>(chunk),
            .sequence = input.sequence,
            .sender = static_cast<std::uint32_t>(sender),
            .payload_bytes = 0,
            .nonfinite = 0};
  }
  std::uint64_t tag(const ReductionInput& input, FrameKind kind, std::size_t chunk) const {
    return message_tag(channel, kind, input.sequence, first_chunk + static_cast<std::uint32_t>(chunk));
  }
};

/// The compressed all-reduce of parameters of one bucket, as a state machine that never blocks: `begin`, then `advance`
/// until `finished`.
class Reduction {
 public:
  Reduction() = default;
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;
  virtual ~Reduction() = default;

  virtual void begin(const ReductionInput& input) = 0;
  /// Does what can be done without waiting. Returns whether anything was done. Throws what the transport throws, and
  /// Error(corrupt | mismatch) for a frame that is not what it must be.
  virtual bool advance() = 0;
  virtual bool finished() const = 0;
  virtual const Statistics& statistics() const = 0;
  /// Ranks that it waits for, as text.
  virtual std::string waiting_for() const = 0;
  /// Whether every rank is known to have begun this use, and chunks of it wait only for room behind its own. Then less
  /// urgent reductions had better leave the wire to it.
  virtual bool wants_wire() const { return false; }
  /// While held, it begins no further chunks, and goes on with those under way.
  virtual void hold(bool /*held*/) {}
  /// Memory for frames, in bytes.
  virtual std::size_t frame_bytes() const { return 0; }
  /// Columns of the factors of the last use; 0 where there are none.
  virtual std::size_t factor_rank() const { return 0; }
  /// Keeps, or forgets, what the uses since the last call have changed of its own.
  virtual void end_step(bool /*keep*/) {}

  /// Residuals of the last commit become what they are said to be, where part of the arithmetic was left to the next
  /// use. Bits of later uses stay the same. Not while a use is under way.
  virtual void settle_residuals() {}

  /// Between steps: adds what the next use depends on besides residuals, and takes it up again.
  virtual void save(state::Records& /*records*/) const {}
  virtual void restore(std::span<const state::Record> /*records*/, bool /*same_ranks*/) {}
};

namespace detail {

/// Adds the time until it is destroyed to a counter; arithmetic inside it is default IEEE.
class Work {
 public:
  explicit Work(double& seconds) : seconds_(seconds), begin_(Clock::now()) {}
  ~Work() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  double& seconds_;
  TimePoint begin_;
  detail::FloatEnvironment environment_;
};

}  // namespace detail
}  // namespace tightwire
