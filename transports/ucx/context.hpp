#pragma once
#include <ucp/api/ucp.h>

#include <string>

#include <tightwire/ucx.hpp>

namespace tightwire::ucx {

/// A UCP context: the transports of this process that a job may use.
class Context {
 public:
  /// Throws Error(unsupported) if nothing of what `options` (or the UCX_* variables) ask for is usable.
  Context(const Options& options, int size);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { close(); }

  ucp_context_h get() const noexcept { return context_; }
  void close() noexcept;

 private:
  ucp_context_h context_ = nullptr;
};

/// A UCP worker: the progress engine. Its owner serialises all calls.
class Worker {
 public:
  explicit Worker(const Context& context);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { close(); }

  ucp_worker_h get() const noexcept { return worker_; }
  /// Readable (poll) when there is something to progress, after ucp_worker_arm said so.
  int event_descriptor() const noexcept { return event_descriptor_; }
  /// What a peer needs to connect to this worker.
  std::string address() const;
  /// After it nothing of UCX touches the memory of this process.
  void close() noexcept;

 private:
  ucp_worker_h worker_ = nullptr;
  int event_descriptor_ = -1;
};

}  // namespace tightwire::ucx
