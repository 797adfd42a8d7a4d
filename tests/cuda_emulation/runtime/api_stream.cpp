// The CUDA runtime's calls about streams and events.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "api.hpp"
#include "stream.hpp"

using namespace cuda_emulation;

/// Each record is one of its own: what waits for one is not let go by a later one that another stream reaches first.
struct CUevent_st {
  struct Record {
    std::atomic<bool> reached = false;
    std::chrono::steady_clock::time_point when;
  };
  std::shared_ptr<Record> latest() {
    const std::lock_guard lock(mutex_);
    return latest_;
  }
  std::shared_ptr<Record> record() {
    const std::lock_guard lock(mutex_);
    return latest_ = std::make_shared<Record>();
  }
  bool done() {
    const std::shared_ptr<Record> record = latest();
    return !record || record->reached;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Record> latest_;
};

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  *stream = create_stream((flags & cudaStreamNonBlocking) == 0);
  return noted(cudaSuccess);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
/// Waits for nothing: what was put on it is still done.
cudaError_t cudaStreamDestroy(cudaStream_t) { return noted(cudaSuccess); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_capturing(stream)) return refused(cudaErrorStreamCaptureUnsupported, "a captured stream is waited for");
  return noted(synchronize(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (is_capturing(stream) || spoils_capture()) return capture_spoiled("cudaStreamQuery");
  return noted(idle(stream) ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  enqueue(stream, "a host function", [=] {
    function(argument);
    return true;
  });
  return noted(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  count(Call::allocation);
  *event = new CUevent_st;
  return noted(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
/// Pending work may name it: it stays.
cudaError_t cudaEventDestroy(cudaEvent_t) { return noted(cudaSuccess); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  enqueue(stream, "the record of an event", [record = event->record()] {
    record->when = std::chrono::steady_clock::now();
    record->reached = true;
    return true;
  });
  return noted(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (is_capturing(stream))
    return refused(cudaErrorStreamCaptureIsolation, "a captured stream waits for an event from outside");
  enqueue(stream, "a wait for an event", [record = event->latest()] { return !record || record->reached; });
  return noted(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return noted(wait_until([=] { return event->done(); }, "cudaEventSynchronize"));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (spoils_capture()) return capture_spoiled("cudaEventQuery");
  if (!event->done()) let_work_go_on();
  return noted(event->done() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (!from->latest() || !to->latest()) return noted(cudaErrorInvalidResourceHandle);
  if (!from->done() || !to->done()) return noted(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to->latest()->when - from->latest()->when).count();
  return noted(cudaSuccess);
}

}  // extern "C"
