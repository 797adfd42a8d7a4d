#pragma once
#include <cstddef>
#include <string>
#include <utility>

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
  require(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing", rank);
  if (status != cudaStreamCaptureStatusNone)
    throw Error(Errc::unsupported, "rank " + std::to_string(rank) + ": " + call +
                                       ": the stream is captured into a CUDA graph, which cannot be replayed: " + why);
}

/// While it lives, calls of this thread are about that device.
class OfDevice {
 public:
  OfDevice(int device, int rank) {
    require(cudaGetDevice(&before_), "cudaGetDevice", rank);
    if (device != before_) require(cudaSetDevice(device), "cudaSetDevice", rank);
    changed_ = device != before_;
  }
  OfDevice(const OfDevice&) = delete;
  OfDevice& operator=(const OfDevice&) = delete;
  ~OfDevice() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// While it lives, calls of this thread spoil no graph that it captures from another stream, as questions to events
/// would.
class BesidesCaptures {
 public:
  BesidesCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesidesCaptures(const BesidesCaptures&) = delete;
  BesidesCaptures& operator=(const BesidesCaptures&) = delete;
  ~BesidesCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  ///< after the exchange, the one before
};

/// Memory of the current device, zeros at first, or of the host where devices reach it.
class Memory {
 public:
  enum class Kind { device, pinned };
  Memory() = default;
  Memory(std::size_t bytes, Kind kind, int rank) : bytes_(bytes), kind_(kind) {
    if (bytes == 0) return;
    if (kind == Kind::pinned) {
      require(cudaMallocHost(&data_, bytes), "cudaMallocHost", rank);
      return;
    }
    require(cudaMalloc(&data_, bytes), "cudaMalloc", rank);
    require(cudaMemset(data_, 0, bytes), "cudaMemset", rank);
    require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize", rank);  // our streams do not wait for that one
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
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Kind kind_ = Kind::device;
};

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
  /// Returns when the stream has come there.
  void synchronize() const noexcept { cudaEventSynchronize(event_); }
  /// Whether the stream has come there.
  bool reached(int rank) const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    require(status, "cudaEventQuery", rank);
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tightwire::cuda::detail
