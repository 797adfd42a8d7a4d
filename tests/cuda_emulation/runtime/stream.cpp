#include "stream.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "options.hpp"

namespace {

struct Work {
  std::string name;
  std::function<bool()> run;
  std::vector<std::pair<const CUstream_st*, std::uint64_t>> after;  ///< streams that must have come so far
};

}  // namespace

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUstream_st {
  int device = 0;
  bool waits_for_null_stream = true;
  std::deque<Work> pending;
  std::unique_ptr<CUgraph_st> capture;  ///< where work goes in place of `pending`
  std::atomic<std::uint64_t> enqueued = 0, done = 0;
};

namespace cuda_emulation {
namespace {

struct Device {
  std::recursive_mutex mutex;
  CUstream_st null;
  std::vector<std::unique_ptr<CUstream_st>> streams;  ///< those destroyed too: work may name them
  std::uint64_t random = 1;
};
std::atomic<std::uint64_t> progress = 0;
std::atomic<int> captures = 0;
thread_local int device_of_thread = 0;
thread_local bool chose_device = false;
std::atomic<std::uint64_t> contexts_made = 0;

Device& device_at(int number) {
  static std::mutex mutex;
  static std::map<int, Device> devices;
  const std::lock_guard lock(mutex);
  Device& device = devices[number];
  device.null.device = number;
  return device;
}
CUstream_st& resolve(cudaStream_t stream) {
  const bool is_null = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_null ? device_at(device_of_thread).null : *stream;
}

bool step(CUstream_st& stream) {
  if (stream.pending.empty()) return false;
  Work& work = stream.pending.front();
  for (const auto& [other, number] : work.after)
    if (other->done < number) return false;
  if (!work.run()) return false;
  stream.pending.pop_front();
  ++stream.done;
  ++progress;
  return true;
}

/// One piece of work of one stream, which the options choose.
bool step(Device& device) {
  const std::size_t streams = device.streams.size() + 1;
  std::size_t first = 0;
  if (options().reverse) first = streams - 1;
  if (options().seed != 0) {
    device.random = device.random * 6364136223846793005u + options().seed;
    first = (device.random >> 33) % streams;
  }
  for (std::size_t i = 0; i < streams; ++i) {
    const std::size_t which = (first + i) % streams;
    if (step(which == 0 ? device.null : *device.streams[which - 1])) return true;
  }
  return false;
}
bool step_any() {
  const int own = device_of_thread;
  bool stepped = false;
  for (int i = 0; i < options().devices && !stepped; ++i) {
    const int number = (own + i) % options().devices;
    Device& device = device_at(number);
    const std::unique_lock lock(device.mutex, std::try_to_lock);
    if (!lock) continue;
    device_of_thread = number;
    stepped = step(device);
  }
  device_of_thread = own;
  return stepped;
}

std::string pending_names() {
  std::string names;
  for (int i = 0; i < options().devices; ++i) {
    Device& device = device_at(i);
    const std::lock_guard lock(device.mutex);
    if (!device.null.pending.empty()) names += " null stream: " + device.null.pending.front().name + ";";
    for (const auto& stream : device.streams)
      if (!stream->pending.empty()) names += " a stream: " + stream->pending.front().name + ";";
  }
  return names;
}

}  // namespace

void enqueue(cudaStream_t where, std::string name, std::function<bool()> run) {
  CUstream_st& stream = resolve(where);
  if (const std::uint64_t most = options().queue; most != 0 && stream.enqueued - stream.done >= most)
    wait_until([&] { return stream.enqueued - stream.done < most; }, "putting work on a full stream");
  Device& device = device_at(stream.device);
  const std::lock_guard lock(device.mutex);
  Work work{std::move(name), std::move(run), {}};
  if (stream.capture) {
    stream.capture->work.push_back(std::move(work));
    return;
  }
  if (&stream == &device.null) {
    for (const auto& other : device.streams)
      if (other->waits_for_null_stream) work.after.emplace_back(other.get(), other->enqueued.load());
  } else if (stream.waits_for_null_stream) {
    work.after.emplace_back(&device.null, device.null.enqueued.load());
  }
  stream.pending.push_back(std::move(work));
  ++stream.enqueued;
}

cudaError_t wait_until(const std::function<bool()>& condition, const std::string& what) {
  using Clock = std::chrono::steady_clock;
  count(Call::wait);
  auto last_progress = Clock::now();
  std::uint64_t seen = progress;
  while (!condition()) {
    if (sticky_error() != cudaSuccess) return sticky_error();
    if (step_any() || progress != seen) {
      seen = progress;
      last_progress = Clock::now();
      continue;
    }
    if (Clock::now() - last_progress > std::chrono::milliseconds(options().patience_ms)) {
      report("deadlock: " + what + " waits for ever; pending:" + pending_names());
      set_sticky_error(cudaErrorLaunchTimeout);
      return cudaErrorLaunchTimeout;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return sticky_error();
}

cudaError_t synchronize(cudaStream_t where) {
  const CUstream_st& stream = resolve(where);
  const std::uint64_t until = stream.enqueued;
  return wait_until([&] { return stream.done >= until; }, "cudaStreamSynchronize");
}
cudaError_t synchronize_device() {
  Device& device = device_at(device_of_thread);
  std::vector<const CUstream_st*> all{&device.null};
  {
    const std::lock_guard lock(device.mutex);
    for (const auto& stream : device.streams) all.push_back(stream.get());
  }
  return wait_until(
      [&] {
        for (const CUstream_st* stream : all)
          if (stream->done < stream->enqueued) return false;
        return true;
      },
      "cudaDeviceSynchronize");
}
void let_work_go_on() { step_any(); }
bool idle(cudaStream_t where) {
  step_any();
  const CUstream_st& stream = resolve(where);
  return stream.done >= stream.enqueued;
}

bool is_capturing(cudaStream_t where) { return resolve(where).capture != nullptr; }
bool any_capture() { return captures != 0; }
bool captures_beside_null_stream() {
  Device& device = device_at(device_of_thread);
  const std::lock_guard lock(device.mutex);
  return std::any_of(device.streams.begin(), device.streams.end(),
                     [](const auto& stream) { return stream->capture && stream->waits_for_null_stream; });
}
void begin_capture(cudaStream_t where) {
  CUstream_st& stream = resolve(where);
  const std::lock_guard lock(device_at(stream.device).mutex);
  stream.capture = std::make_unique<CUgraph_st>();
  ++captures;
}
CUgraph_st* end_capture(cudaStream_t where) {
  CUstream_st& stream = resolve(where);
  const std::lock_guard lock(device_at(stream.device).mutex);
  --captures;
  return stream.capture.release();
}
void launch_graph(const CUgraph_st& graph, cudaStream_t where) {
  for (const Work& work : graph.work) enqueue(where, work.name + " of a graph", work.run);
}
std::size_t works_of(const CUgraph_st& graph) { return graph.work.size(); }
void destroy_graph(CUgraph_st* graph) { delete graph; }

cudaStream_t create_stream(bool waits_for_null_stream) {
  count(Call::allocation);
  Device& device = device_at(device_of_thread);
  const std::lock_guard lock(device.mutex);
  device.streams.push_back(std::make_unique<CUstream_st>());
  device.streams.back()->device = device_of_thread;
  device.streams.back()->waits_for_null_stream = waits_for_null_stream;
  return device.streams.back().get();
}

int current_device() { return device_of_thread; }
void set_current_device(int device) {
  device_of_thread = device;
  chose_device = true;
  contexts_made |= std::uint64_t{1} << device;
}
bool thread_has_context() { return chose_device; }
bool context_was_made(int device) { return (contexts_made >> device & 1) != 0; }

void drop_pending_work() {
  contexts_made = 0;
  for (int i = 0; i < options().devices; ++i) {
    Device& device = device_at(i);
    const std::lock_guard lock(device.mutex);
    const auto drop = [](CUstream_st& stream) {
      stream.pending.clear();
      stream.done = stream.enqueued.load();
    };
    drop(device.null);
    for (const auto& stream : device.streams) drop(*stream);
  }
}

}  // namespace cuda_emulation
