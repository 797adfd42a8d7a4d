#include "record_writer.hpp"

namespace tightwire::telemetry {
namespace {

void put(TextBuilder& line, const Statistics& s) {
  line << "\"gradient_bytes\":" << s.gradient_bytes << ",\"sent_bytes\":" << s.sent_bytes
       << ",\"received_bytes\":" << s.received_bytes << ",\"encode_seconds\":" << s.encode_seconds
       << ",\"combine_seconds\":" << s.combine_seconds << ",\"decode_seconds\":" << s.decode_seconds
       << ",\"wire_seconds\":" << s.wire_seconds << ",\"nonfinite\":" << s.nonfinite;
}

/// One JSON object per line: what the Session is, then its steps.
class JsonLines final : public RecordWriter {
 public:
  explicit JsonLines(const std::string& path) : file_(path, "a") {}

  void begin(const JobPlace& place) override {
    line_ << "{\"session\":{\"rank\":" << place.rank << ",\"ranks\":" << place.ranks << ",\"description\":";
    line_.quoted(place.description) << "}}\n";
    write();
    flush();
  }
  void step(const StepRecord& record) override {
    const StepStatistics& s = record.statistics;
    line_ << "{\"step\":" << record.step << ",\"kept\":" << (record.kept ? "true" : "false")
          << ",\"began\":" << record.began << ",\"step_seconds\":" << s.step_seconds
          << ",\"blocked_seconds\":" << s.blocked_seconds << ",\"communication_share\":" << s.communication_share()
          << ",\"overlap\":" << record.overlap << ",\"reductions\":" << s.calls << ",";
    put(line_, s);
    line_ << ",\"buckets\":[";
    bool first = true;
    for (const BucketRecord& bucket : record.buckets) {
      line_ << (first ? "{\"name\":" : ",{\"name\":");
      first = false;
      line_.quoted(bucket.name) << ",\"began\":" << bucket.began << ",\"ended\":" << bucket.ended << ",";
      put(line_, bucket.statistics);
      line_ << "}";
    }
    line_ << "]";
    if (const auto& sample = record.sample) {
      line_ << ",\"sample\":{\"parameter\":";
      line_.quoted(sample->parameter) << ",\"elements\":" << std::uint64_t{sample->elements}
                                      << ",\"gradient_norm\":" << sample->gradient_norm
                                      << ",\"error\":" << sample->error
                                      << ",\"residual_norm\":" << sample->residual_norm << "}";
    }
    line_ << "}\n";
    write();
  }
  void flush() override { file_.flush(); }
  void end() override { file_.close(); }

 private:
  void write() {
    file_.write(line_.text());
    line_.clear();
  }
  OutputFile file_;
  TextBuilder line_;
};

}  // namespace

std::unique_ptr<RecordWriter> json_lines(const std::string& path) { return std::make_unique<JsonLines>(path); }

}  // namespace tightwire::telemetry
