// The CUDA runtime's calls about streams and events.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "api.hpp"
#include "stream.hpp"

using namespace cuda_emulation;

namespace {
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
}

cudaError_t cuda_emulation::unless_captured(cudaError_t error) {
  if (options().captured == nullptr || capture_mode == cudaStreamCaptureModeRelaxed) return noted(error);
  return refused(cudaErrorStreamCaptureUnsupported, "a call that spoils the graph which a stream is captured into");
}

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
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return noted(synchronize(stream)); }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return unless_captured(idle(stream) ? cudaSuccess : cudaErrorNotReady);
}
/// Of graphs only what stands in their way is modelled.
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  if (stream == nullptr && options().captured != nullptr) return noted(cudaErrorStreamCaptureImplicit);
  *status =
      stream != nullptr && stream == options().captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return noted(cudaSuccess);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return noted(cudaSuccess);
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
  if (stream != nullptr && stream == options().captured) return noted(cudaErrorStreamCaptureIsolation);
  enqueue(stream, "a wait for an event", [record = event->latest()] { return !record || record->reached; });
  return noted(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return noted(wait_until([=] { return event->done(); }, "cudaEventSynchronize"));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return unless_captured(event->done() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (!from->latest() || !to->latest()) return noted(cudaErrorInvalidResourceHandle);
  if (!from->done() || !to->done()) return noted(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to->latest()->when - from->latest()->when).count();
  return noted(cudaSuccess);
}

}  // extern "C"
