#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tightwire/observer.hpp>
#include <tightwire/statistics.hpp>

namespace tightwire {

/// A bucket's reduction. Times in seconds since the step began.
struct BucketRecord {
  std::string name;  ///< of its first parameter
  Statistics statistics;
  double began = 0, ended = 0;
};

/// A parameter looked at more closely.
struct SampleRecord {
  std::string parameter;
  std::size_t elements = 0;  ///< from its first on
  double gradient_norm = 0;  ///< of the exact mean
  double error = 0;          ///< norm of the result less the exact mean, over `gradient_norm`; NaN where that is 0
  double residual_norm = 0;  ///< of what this rank's contributions lost, kept for later steps
};

/// A step that ended.
struct StepRecord {
  std::uint64_t step = 0;  ///< counted from 0
  bool kept = true;        ///< false: rolled back
  double began = 0;        ///< seconds since the Session was sealed
  StepStatistics statistics;
  /// Part of the time with reductions under way in which the trainer did not wait for them.
  double overlap = 0;
  std::vector<BucketRecord> buckets;
  std::optional<SampleRecord> sample;
};

struct TelemetryOptions {
  // Files, none by default; "{rank}" is replaced by the rank, and must be there where there are several.
  std::string json_lines = {};  ///< a line per step, see docs/telemetry.md; goes on behind what the file has
  std::string prometheus =
      {};                  ///< text exposition format, for node_exporter's textfile collector; replaced every second
  std::string trace = {};  ///< Chrome trace: chrome://tracing, ui.perfetto.dev
  std::function<void(const StepRecord&)> callback = {};
  /// Where warnings go; standard error by default.
  std::function<void(const std::string&)> log = {};
  /// Part of the step that may go into waiting for communication. Above it, over `warn_steps` steps together, `log` is
  /// told so once, with what would help. Not below 0.
  double warn_share = 0.3;
  std::uint64_t warn_steps = 20;
  /// Every so many steps one parameter, another one each time, is reduced exactly as well. 0: never. The same on all
  /// ranks, which `seal` checks; so a Telemetry on some of them needs 0.
  std::uint64_t sample_every = 50;
  std::size_t sample_elements = std::size_t{1} << 16;  ///< at most, from its first on
};

/// Writes what a Session does, step by step. Give it to one Session:
///
///     options.observer = std::make_shared<Telemetry>(TelemetryOptions{.json_lines = "steps-{rank}.jsonl"});
///
/// Needs tightwire::core. Throws Error(invalid_argument) for a file that cannot be written and for options that make no
/// sense; a file that fails later, or at the end, is given up, which `log` is told.
class Telemetry final : public Observer {
 public:
  explicit Telemetry(TelemetryOptions options);
  ~Telemetry() override;

  std::string agreement() const override;
  void sealed(const Session& session, const std::shared_ptr<Transport>& transport) override;
  void started(const Session& session, const Bucket& bucket) override;
  void finished(const Session& session, const Bucket& bucket) override;
  void step_ended(const Session& session, bool kept) override;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace tightwire
