#include <tightwire/telemetry.hpp>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <mutex>
#include <utility>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

#include "record_writer.hpp"
#include "shadow.hpp"

namespace tightwire {
namespace {

Error bad(const std::string& what) { return Error(Errc::invalid_argument, "telemetry: " + what); }

double seconds(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

/// Throws Error(invalid_argument) where several ranks would write one file.
std::string with_rank(std::string path, const char* option, int rank, int ranks) {
  constexpr std::string_view kRank = "{rank}";
  if (!path.empty() && ranks > 1 && path.find(kRank) == std::string::npos)
    throw bad(std::string(option) + " \"" + path + "\" is the same file for all of " + std::to_string(ranks) +
              " ranks; put {rank} into its name");
  for (std::size_t at; (at = path.find(kRank)) != std::string::npos;)
    path.replace(at, kRank.size(), std::to_string(rank));
  return path;
}

}  // namespace

class Telemetry::State {
 public:
  explicit State(TelemetryOptions options) : options_(std::move(options)) {
    if (!(options_.warn_share >= 0)) throw bad("warn_share is below 0");
    if (options_.warn_steps == 0) throw bad("warn_steps is 0");
    if (options_.sample_every != 0 && options_.sample_elements == 0) throw bad("sample_elements is 0");
    if (!options_.log) options_.log = [](const std::string& line) { std::cerr << "tightwire: " + line + "\n"; };
  }

  ~State() {
    for (const auto& writer : writers_) {
      try {
        writer->end();
      } catch (const Error& error) {
        tell_at_the_end(error.what());
      }
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string agreement() const {
    if (options_.sample_every == 0) return {};
    return "telemetry samples " + std::to_string(options_.sample_elements) + " elements every " +
           std::to_string(options_.sample_every) + " steps\n";
  }

  void sealed(const Session& session, const std::shared_ptr<Transport>& transport) {
    if (sealed_) throw bad("it watches a Session already; every Session needs one of its own");
    sealed_ = true;
    const auto open = [&](const std::string& given, const char* option, auto make) {
      const std::string path = with_rank(given, option, session.rank(), session.size());
      if (!path.empty()) writers_.push_back(make(path));
    };
    rank_ = session.rank();
    open(options_.json_lines, "json_lines", telemetry::json_lines);
    open(options_.prometheus, "prometheus", telemetry::prometheus);
    open(options_.trace, "trace", telemetry::chrome_trace);
    for (auto& writer : writers_) writer->begin({session.rank(), session.size(), session.description()});
    if (options_.sample_every != 0 && session.size() > 1)
      shadow_.emplace(session, transport, options_.sample_every, options_.sample_elements);
    for (BucketId id = 0; id < session.buckets(); ++id)
      record_.buckets.push_back({session.parameters()[session.bucket_parameters(id).front()].name, {}});
    sealed_at_ = step_began_ = flushed_ = Clock::now();
  }

  void started(const Session& session, const Bucket& bucket) {
    if (!shadow_) return;
    const std::lock_guard lock(mutex_);
    shadow_->take_gradient(session, bucket);
  }

  void finished(const Session& session, const Bucket& bucket) {
    const std::lock_guard lock(mutex_);
    if (shadow_) shadow_->take_result(bucket);
    BucketRecord& record = record_.buckets[session.bucket_of(bucket.parameters.front())];
    record.statistics += bucket.last;
    record.began = seconds(step_began_, bucket.operation.began);
    record.ended = seconds(step_began_, bucket.operation.ended);
  }

  void step_ended(const Session& session, bool kept) {
    const std::lock_guard lock(mutex_);
    const TimePoint now = Clock::now();
    const NextStep next{*this, now};  // whatever the user's functions throw
    record_.kept = kept;
    record_.began = seconds(sealed_at_, step_began_);
    record_.statistics = session.last_step();
    record_.overlap = overlap();
    if (shadow_) record_.sample = shadow_->end_step(session);
    write(now);
    if (options_.callback) options_.callback(record_);
    warn(session);
  }

 private:
  void tell_at_the_end(const std::string& failure) noexcept {
    try {
      options_.log("rank " + std::to_string(rank_) + ": " + failure + "; what was written to it is not complete");
    } catch (...) {  // nobody is left to be told
    }
  }

  /// At its end records are those of the next step.
  struct NextStep {
    State& state;
    TimePoint began;
    ~NextStep() {
      for (BucketRecord& bucket : state.record_.buckets) {
        bucket.statistics = {};
        bucket.began = bucket.ended = 0;
      }
      state.record_.sample.reset();
      ++state.record_.step;
      state.step_began_ = began;
    }
  };

  /// Of the time with reductions under way, that in which nobody waited.
  double overlap() const {
    const StepStatistics& step = record_.statistics;
    return step.busy_seconds > 0 ? std::clamp(1 - step.blocked_seconds / step.busy_seconds, 0.0, 1.0) : 0;
  }

  void write(TimePoint now) {
    const bool flush = now - flushed_ > std::chrono::seconds(1);
    if (flush) flushed_ = now;
    std::vector<std::string> failures;
    const auto failed = [&](const std::unique_ptr<telemetry::RecordWriter>& writer) {
      try {
        writer->step(record_);
        if (flush) writer->flush();
        return false;
      } catch (const Error& error) {
        failures.push_back(error.what());
        return true;
      }
    };
    writers_.erase(std::remove_if(writers_.begin(), writers_.end(), failed), writers_.end());
    for (const std::string& failure : failures)
      options_.log("rank " + std::to_string(rank_) + ": " + failure + "; nothing more is written to it");
  }

  void warn(const Session& session) {
    if (warned_) return;
    watched_ += record_.statistics;
    watched_overlap_ += record_.overlap;
    if (++watched_steps_ < options_.warn_steps) return;
    const double overlap = watched_overlap_ / static_cast<double>(watched_steps_);
    if (watched_.communication_share() > options_.warn_share) {
      warned_ = true;
      const auto percent = [](double share) { return std::to_string(std::lround(100 * share)) + " %"; };
      options_.log("rank " + std::to_string(rank_) + ": " + percent(watched_.communication_share()) + " of the last " +
                   std::to_string(watched_steps_) + " steps went into waiting for communication, above " +
                   percent(options_.warn_share) + "; " +
                   telemetry::advice(watched_, overlap, session.options().codec.spec()));
    }
    watched_ = {};
    watched_overlap_ = 0;
    watched_steps_ = 0;
  }

  TelemetryOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<telemetry::RecordWriter>> writers_;
  std::optional<telemetry::Shadow> shadow_;
  StepRecord record_;
  TimePoint sealed_at_, step_began_, flushed_;
  int rank_ = 0;
  bool sealed_ = false;
  // For the warning: steps since it was last looked.
  StepStatistics watched_;
  double watched_overlap_ = 0;
  std::uint64_t watched_steps_ = 0;
  bool warned_ = false;
};

Telemetry::Telemetry(TelemetryOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Telemetry::~Telemetry() = default;
std::string Telemetry::agreement() const { return state_->agreement(); }
void Telemetry::sealed(const Session& session, const std::shared_ptr<Transport>& transport) {
  state_->sealed(session, transport);
}
void Telemetry::started(const Session& session, const Bucket& bucket) { state_->started(session, bucket); }
void Telemetry::finished(const Session& session, const Bucket& bucket) { state_->finished(session, bucket); }
void Telemetry::step_ended(const Session& session, bool kept) { state_->step_ended(session, kept); }

}  // namespace tightwire
