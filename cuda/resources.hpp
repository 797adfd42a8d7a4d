#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <tightwire/error.hpp>

namespace tightwire::cuda::detail {

inline std::string describe(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + " (" + std::to_string(static_cast<int>(status)) +
         "): " + cudaGetErrorString(status);
}
/// Throws Error(device | no_memory) that names the rank and the call, unless it succeeded.
inline void require(cudaError_t status, const char* call, int rank) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would have it again
  throw Error(status == cudaErrorMemoryAllocation ? Errc::no_memory : Errc::device,
              "rank " + std::to_string(rank) + ": " + call + ": " + describe(status));
}

/// Throws Error(unsupported) that names the rank and the call while a stream is captured into a CUDA graph.
inline void require_not_captured(cudaStream_t stream, int rank, const char* call, const char* why) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(stream, &status);
  if (asked == cudaErrorStreamCaptureImplicit) {  // the default stream, beside one that is captured
    cudaGetLastError();
    status = cudaStreamCaptureStatusActive;
  } else {
    require(asked, "cudaStreamIsCapturing", rank);
  }
  if (status != cudaStreamCaptureStatusNone)
    throw Error(Errc::unsupported, "rank " + std::to_string(rank) + ": " + call +
                                       ": the stream is captured into a CUDA graph, which cannot be replayed: " + why);
}

/// Whether this thread has a context, by CUDA's driver; true where that cannot be told.
inline bool thread_has_context() {
  static const auto ask = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found, 12000, cudaEnableDefault, &result);
#else
    cudaGetDriverEntryPoint("cuCtxGetCurrent", &found, cudaEnableDefault, &result);
#endif
    return reinterpret_cast<decltype(&cuCtxGetCurrent)>(found);
  }();
  CUcontext context = nullptr;
  return ask == nullptr || ask(&context) != CUDA_SUCCESS || context != nullptr;
}

/// While it lives, calls of this thread are about that device. A thread that had none of its own keeps it: device 0,
/// which CUDA names then, would get a context, and memory for it, by going back.
class OfDevice {
 public:
  OfDevice(int device, int rank) {
    require(cudaGetDevice(&before_), "cudaGetDevice", rank);
    if (device == before_) return;
    const bool goes_back = thread_has_context();
    require(cudaSetDevice(device), "cudaSetDevice", rank);
    goes_back_ = goes_back;
  }
  OfDevice(const OfDevice&) = delete;
  OfDevice& operator=(const OfDevice&) = delete;
  ~OfDevice() {
    if (goes_back_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool goes_back_ = false;
};

/// While it lives, calls of this thread spoil no graph that is captured from another stream, by this thread or another.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  ///< after the exchange, the one before
};

/// Whether a stream has come to its end, or to an error, by then.
inline bool ends_by(cudaStream_t stream, std::chrono::steady_clock::time_point until) {
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

/// A stream of the current device that waits for no other.
class OwnStream {
 public:
  explicit OwnStream(int rank) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", rank);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Memory of the current device, zeros at first, or of the host where devices reach it, with anything in it.
class Memory {
 public:
  enum class Kind { device, pinned };
  Memory() = default;
  Memory(std::size_t bytes, Kind kind, int rank) : Memory() {  // whole from here on, and so freed where this throws
    bytes_ = bytes;
    kind_ = kind;
    if (bytes == 0) return;
    if (kind == Kind::pinned) {
      require(cudaMallocHost(&data_, bytes), "cudaMallocHost", rank);
      return;
    }
    require(cudaMalloc(&data_, bytes), "cudaMalloc", rank);
    // Not on the default stream, which waits for those of others, and spoils a capture of theirs.
    const OwnStream stream(rank);
    require(cudaMemsetAsync(data_, 0, bytes, stream.get()), "cudaMemsetAsync", rank);
    require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize", rank);
  }
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
    return *this;
  }
  ~Memory() {
    if (data_ == nullptr) return;
    kind_ == Kind::pinned ? cudaFreeHost(data_) : cudaFree(data_);
  }
  /// It stays, for a device that does not come to an end with it.
  void leave() noexcept { data_ = nullptr; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Kind kind_ = Kind::device;
};

/// A place in a stream.
class Event {
 public:
  explicit Event(int rank) {
    require(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags", rank);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void record(cudaStream_t stream, int rank) const {
    require(cudaEventRecord(event_, stream), "cudaEventRecord", rank);
  }
  void wait(cudaStream_t stream, int rank) const {
    require(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent", rank);
  }
  /// Whether the stream has come there.
  bool reached(int rank) const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;  // no error, and none for cudaGetLastError
    require(status, "cudaEventQuery", rank);
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tightwire::cuda::detail
