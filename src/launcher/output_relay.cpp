#include "output_relay.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <string_view>

namespace tightwire::launcher {
namespace {

/// A line without an end is handed on in pieces of this size.
constexpr std::size_t kLongestLine = 65536;
/// With more than this waiting for our reader, the ranks have to wait.
constexpr std::size_t kMostWaiting = 1U << 20U;

}  // namespace

PipeEnd OutputRelay::add(int rank, int target) {
  Pipe pipe = make_pipe();
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  auto sink = std::find_if(sinks_.begin(), sinks_.end(), [&](const Sink& known) { return known.target == target; });
  if (sink == sinks_.end()) sink = sinks_.insert(sink, {target, {}});
  sources_.push_back({rank, static_cast<std::size_t>(sink - sinks_.begin()), std::move(pipe.read), {}});
  return std::move(pipe.write);
}

void OutputRelay::prepare(std::vector<pollfd>& polled) const {
  for (const Source& source : sources_) {
    const bool room = sinks_[source.sink].waiting.size() < kMostWaiting;
    polled.push_back({room ? source.pipe.get() : -1, POLLIN, 0});
  }
  for (const Sink& sink : sinks_) polled.push_back({sink.waiting.empty() ? -1 : sink.target, POLLOUT, 0});
}

void OutputRelay::serve(const pollfd* polled) {
  for (Source& source : sources_) {
    if ((polled++)->revents != 0) read(source);
  }
  for (Sink& sink : sinks_) {
    if ((polled++)->revents != 0) write(sink);
  }
}

bool OutputRelay::is_finished() const {
  return std::all_of(sources_.begin(), sources_.end(), [](const Source& source) { return source.pipe.get() < 0; }) &&
         std::all_of(sinks_.begin(), sinks_.end(), [](const Sink& sink) { return sink.waiting.empty(); });
}

void OutputRelay::stop_reading() {
  for (Source& source : sources_) {
    if (source.pipe.get() >= 0) read(source);
    finish(source);
  }
}

void OutputRelay::read(Source& source) {
  std::array<char, 16384> buffer;
  const ssize_t count = ::read(source.pipe.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return finish(source);
  source.line.append(buffer.data(), static_cast<std::size_t>(count));
  std::string_view rest = source.line;
  while (true) {
    auto end = rest.find('\n');
    if (end == std::string_view::npos && rest.size() < kLongestLine) break;
    end = std::min(end, kLongestLine);
    append_line(source, rest.substr(0, end));
    rest.remove_prefix(std::min(rest.size(), end + (rest.size() > end && rest[end] == '\n' ? 1 : 0)));
  }
  source.line = std::string(rest);
}

void OutputRelay::finish(Source& source) {
  if (source.pipe.get() < 0) return;
  if (!source.line.empty()) append_line(source, source.line);
  source.line.clear();
  source.pipe.close();
}

void OutputRelay::append_line(const Source& source, std::string_view line) {
  if (broken_) return;
  std::string& waiting = sinks_[source.sink].waiting;
  waiting += '[';
  waiting += std::to_string(source.rank);
  waiting += "] ";
  waiting += line;
  waiting += '\n';
}

void OutputRelay::write(Sink& sink) {
  // poll() has promised room for PIPE_BUF bytes, no more.
  const ssize_t count = ::write(sink.target, sink.waiting.data(), std::min<std::size_t>(sink.waiting.size(), PIPE_BUF));
  if (count >= 0) {
    sink.waiting.erase(0, static_cast<std::size_t>(count));
  } else if (errno != EAGAIN && errno != EINTR) {
    broken_ = true;
    for (Sink& each : sinks_) each.waiting.clear();
  }
}

}  // namespace tightwire::launcher
