#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <tightwire/error.hpp>

#include "record_writer.hpp"

namespace tightwire::telemetry {
namespace {

/// Counters since the Session was sealed, and the last step's shares, in the text exposition format. The file is
/// replaced as a whole, so that no reader sees half of it.
class Prometheus final : public RecordWriter {
 public:
  explicit Prometheus(const std::string& path) : path_(path) { replace(); }

  void begin(const JobPlace& place) override {
    labels_.clear();
    labels_ << "{rank=\"" << place.rank << "\"} ";
    flush();
  }
  void step(const StepRecord& record) override {
    total_ += record.statistics;
    ++steps_;
    rolled_back_ += record.kept ? 0 : 1;
    share_ = record.statistics.communication_share();
    overlap_ = record.overlap;
    if (record.sample) {
      error_ = record.sample->error;
      residual_ = record.sample->residual_norm;
    }
  }
  void flush() override {
    text_.clear();
    counter("steps_total", "Steps that ended", steps_);
    counter("steps_rolled_back_total", "Steps that were rolled back", rolled_back_);
    counter("reductions_total", "Reductions of buckets", total_.calls);
    counter("gradient_bytes_total", "Gradients reduced, as the trainer holds them", total_.gradient_bytes);
    counter("sent_bytes_total", "Bytes sent by this rank", total_.sent_bytes);
    counter("received_bytes_total", "Bytes received by this rank", total_.received_bytes);
    counter("nonfinite_total", "NaN or infinite elements met on all ranks", total_.nonfinite);
    counter("step_seconds_total", "Time of steps", total_.step_seconds);
    counter("blocked_seconds_total", "Time the trainer waited for communication", total_.blocked_seconds);
    counter("encode_seconds_total", "Time contributions were encoded", total_.encode_seconds);
    counter("combine_seconds_total", "Time contributions were summed", total_.combine_seconds);
    counter("decode_seconds_total", "Time results were decoded", total_.decode_seconds);
    counter("wire_seconds_total", "Time reductions waited for messages", total_.wire_seconds);
    entry("communication_share", "Part of the last step spent waiting for communication", "gauge", share_);
    entry("overlap", "Part of the last step's communication that nobody waited for", "gauge", overlap_);
    entry("sample_error", "Relative error of the last sampled parameter's mean", "gauge", error_);
    entry("sample_residual_norm", "Norm of the last sampled parameter's residual", "gauge", residual_);
    replace();
  }

 private:
  template <class Number>
  void counter(const char* name, const char* help, Number value) {
    entry(name, help, "counter", value);
  }
  template <class Number>
  void entry(const char* name, const char* help, const char* type, Number value) {
    text_ << "# HELP tightwire_" << name << " " << help << "\n# TYPE tightwire_" << name << " " << type
          << "\ntightwire_" << name << labels_.text();
    put(value);
    text_ << "\n";
  }
  void put(std::uint64_t value) { text_ << value; }
  /// What is not finite has names of its own here; of JSON's "null" a reader refuses the whole file.
  void put(double value) {
    if (std::isfinite(value))
      text_ << value;
    else
      text_ << (std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
  }
  void replace() {
    const std::string draft = path_ + ".draft";
    {
      OutputFile file(draft);
      file.write(text_.text());
      file.close();
    }
    if (std::rename(draft.c_str(), path_.c_str()) != 0)
      throw Error(Errc::transport, "telemetry: \"" + path_ + "\" cannot be replaced: " + std::strerror(errno));
  }

  std::string path_;
  TextBuilder text_, labels_;
  StepStatistics total_;
  std::uint64_t steps_ = 0, rolled_back_ = 0;
  double share_ = 0, overlap_ = 0, error_ = 0, residual_ = 0;
};

}  // namespace

std::unique_ptr<RecordWriter> prometheus(const std::string& path) { return std::make_unique<Prometheus>(path); }

}  // namespace tightwire::telemetry
