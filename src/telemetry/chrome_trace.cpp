#include "record_writer.hpp"

namespace tightwire::telemetry {
namespace {

/// Trace events (JSON array format): a process per rank; steps on one track, every bucket on one of its own.
class ChromeTrace final : public RecordWriter {
 public:
  explicit ChromeTrace(const std::string& path) : file_(path) { file_.write("["); }

  void begin(const JobPlace& place) override {
    rank_ = place.rank;
    event("M", "process_name", 0) << ",\"args\":{\"name\":\"rank " << rank_ << "\"}}";
    event("M", "thread_name", 0) << ",\"args\":{\"name\":\"steps\"}}";
    write();
  }
  void step(const StepRecord& record) override {
    const StepStatistics& s = record.statistics;
    if (record.buckets.size() > named_) name_tracks(record);
    complete("step", 0, record.began, s.step_seconds)
        << ",\"args\":{\"step\":" << record.step << ",\"kept\":" << (record.kept ? "true" : "false")
        << ",\"communication_share\":" << s.communication_share() << ",\"overlap\":" << record.overlap << "}}";
    for (std::size_t i = 0; i < record.buckets.size(); ++i) {
      const BucketRecord& bucket = record.buckets[i];
      const Statistics& b = bucket.statistics;
      if (b.calls == 0) continue;
      complete(bucket.name, i + 1, record.began + bucket.began, bucket.ended - bucket.began)
          << ",\"args\":{\"sent_bytes\":" << b.sent_bytes << ",\"encode_us\":" << 1e6 * b.encode_seconds
          << ",\"combine_us\":" << 1e6 * b.combine_seconds << ",\"decode_us\":" << 1e6 * b.decode_seconds
          << ",\"wire_us\":" << 1e6 * b.wire_seconds << "}}";
    }
    write();
  }
  void flush() override { file_.flush(); }
  void end() override {
    file_.write("\n]\n");
    file_.close();
  }

 private:
  TextBuilder& event(const char* phase, std::string_view name, std::size_t track) {
    text_ << (first_ ? "\n" : ",\n") << "{\"ph\":\"" << phase << "\",\"name\":";
    first_ = false;
    return text_.quoted(name) << ",\"pid\":" << rank_ << ",\"tid\":" << std::uint64_t{track};
  }
  TextBuilder& complete(std::string_view name, std::size_t track, double began, double seconds) {
    return event("X", name, track) << ",\"ts\":" << 1e6 * began << ",\"dur\":" << 1e6 * seconds;
  }
  void name_tracks(const StepRecord& record) {
    for (std::size_t i = named_; i < record.buckets.size(); ++i) {
      event("M", "thread_name", i + 1) << ",\"args\":{\"name\":";
      text_.quoted("bucket " + std::to_string(i) + " (" + record.buckets[i].name + ")") << "}}";
    }
    named_ = record.buckets.size();
  }
  void write() {
    file_.write(text_.text());
    text_.clear();
  }

  OutputFile file_;
  TextBuilder text_;
  int rank_ = 0;
  std::size_t named_ = 0;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<RecordWriter> chrome_trace(const std::string& path) { return std::make_unique<ChromeTrace>(path); }

}  // namespace tightwire::telemetry
