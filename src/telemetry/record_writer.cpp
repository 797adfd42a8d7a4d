#include "record_writer.hpp"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include <tightwire/error.hpp>

namespace tightwire::telemetry {

OutputFile::OutputFile(const std::string& path, const char* mode) : path_(path), file_(std::fopen(path.c_str(), mode)) {
  if (file_ == nullptr)
    throw Error(Errc::invalid_argument, "telemetry: \"" + path + "\" cannot be written: " + std::strerror(errno));
  // Many steps at once, of which there is a flush every second anyway.
  static_cast<void>(std::setvbuf(file_, nullptr, _IOFBF, std::size_t{1} << 16));
}
OutputFile::~OutputFile() {
  if (file_ != nullptr) static_cast<void>(std::fclose(file_));  // after an error, which was thrown
}

void OutputFile::fail(const char* what) const {
  throw Error(Errc::transport, "telemetry: \"" + path_ + "\": " + what + ": " + std::strerror(errno));
}
void OutputFile::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) fail("cannot be written");
}
void OutputFile::flush() {
  if (std::fflush(file_) != 0) fail("cannot be written");
}
void OutputFile::close() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0) fail("cannot be written");
}

TextBuilder& TextBuilder::operator<<(std::uint64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  text_.append(digits, end);
  return *this;
}
TextBuilder& TextBuilder::operator<<(double number) {
  if (!std::isfinite(number)) return *this << "null";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  text_.append(digits, end);
  return *this;
}
TextBuilder& TextBuilder::quoted(std::string_view text) {
  text_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      text_ += code;
    } else {
      text_ += c;
    }
  }
  text_ += '"';
  return *this;
}

std::string advice(const StepStatistics& statistics, double overlap, std::string_view codec) {
  const double work = statistics.encode_seconds + statistics.combine_seconds + statistics.decode_seconds;
  const bool exact = codec == "exact";
  std::string text;
  if (work > statistics.wire_seconds)
    text = exact ? "adding up takes longer than the wire: more cores per rank, or gradients in bf16, would help"
                 : "the codec takes longer than the wire: exact or bf16 may be faster, codec=auto finds out";
  else
    text = exact ? "the wire is what it waits for: a codec sends fewer bytes (int8, or auto to have it chosen)"
                 : "the wire is what it waits for: a codec of fewer bits, or a hierarchy where ranks share a node's "
                   "link, sends fewer bytes";
  if (overlap < 0.2)
    text += "; and buckets started as their gradients become ready (start) go on behind the backward pass";
  return text + "; `tightwire plan` compares what there is";
}

}  // namespace tightwire::telemetry
