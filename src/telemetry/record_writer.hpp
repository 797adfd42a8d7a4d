#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include <tightwire/telemetry.hpp>

namespace tightwire::telemetry {

/// Which Session records are of.
struct JobPlace {
  int rank = 0;
  int ranks = 1;
  std::string description;  ///< Session::description()
};

/// Puts records into a file of some form. Throws Error(transport) when the file fails.
class RecordWriter {
 public:
  RecordWriter() = default;
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;
  virtual ~RecordWriter() = default;
  virtual void begin(const JobPlace& place) = 0;
  virtual void step(const StepRecord& record) = 0;
  /// Makes readable what was written, about once a second.
  virtual void flush() = 0;
  /// The last call.
  virtual void end() { flush(); }
};

/// Throw Error(invalid_argument) for a path that cannot be written. Lines go on behind those that a file has, the
/// others replace it.
std::unique_ptr<RecordWriter> json_lines(const std::string& path);
std::unique_ptr<RecordWriter> prometheus(const std::string& path);
std::unique_ptr<RecordWriter> chrome_trace(const std::string& path);

/// A file that is written, and closed at the end.
class OutputFile {
 public:
  /// `mode` as fopen has it.
  explicit OutputFile(const std::string& path, const char* mode = "w");
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  /// Throw Error(transport).
  void write(std::string_view text);
  void flush();
  void close();

 private:
  [[noreturn]] void fail(const char* what) const;
  std::string path_;
  std::FILE* file_;
};

/// Adds to a text without taking memory anew for each part.
class TextBuilder {
 public:
  TextBuilder& operator<<(std::string_view text) {
    text_ += text;
    return *this;
  }
  TextBuilder& operator<<(std::uint64_t number);
  TextBuilder& operator<<(int number) { return *this << static_cast<std::uint64_t>(number); }
  /// The shortest form that reads the same; "null" where it is not finite.
  TextBuilder& operator<<(double number);
  /// In quotation marks, as JSON has it.
  TextBuilder& quoted(std::string_view text);

  std::string_view text() const { return text_; }
  void clear() { text_.clear(); }

 private:
  std::string text_;
};

/// Told once a Session waits too much: what its figures suggest.
std::string advice(const StepStatistics& statistics, double overlap, std::string_view codec);

}  // namespace tightwire::telemetry
