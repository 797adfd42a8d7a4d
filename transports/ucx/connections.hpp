#pragma once
#include <ucp/api/ucp.h>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tightwire/transport.hpp>
#include <tightwire/ucx.hpp>

#include "context.hpp"
#include "peer.hpp"

namespace tightwire::ucx {

/// UCX's word that a peer can no longer be reached.
struct EndpointFailure {
  int peer;
  ucs_status_t status;
};

/// One endpoint for each peer that is reached, on one worker. Its owner serialises all calls.
class Connections {
 public:
  Connections(const Options& options, int rank, int size);
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;
  ~Connections() { drop(); }

  /// What the others need to know to connect to us.
  Peer self() const;
  /// Makes an endpoint to each of `ranks` but ours; `peers` are those of all. UCX connects them while it makes
  /// progress.
  void connect(const std::vector<Peer>& peers, const std::vector<int>& ranks);

  ucp_context_h context() const noexcept { return context_.get(); }
  ucp_worker_h worker() const noexcept { return worker_.get(); }
  int event_descriptor() const noexcept { return worker_.event_descriptor(); }
  /// Null where there is none.
  ucp_ep_h endpoint(int peer) const noexcept { return endpoints_[static_cast<std::size_t>(peer)].handle; }
  /// The first endpoint that failed since `connect`.
  const std::optional<EndpointFailure>& failure() const noexcept { return failure_; }

  /// "posix cma", or by peer where they differ: "posix cma to ranks 1; tcp to ranks 2, 3".
  std::string describe() const;
  /// True if every endpoint goes through memory of this machine alone, as UCX has connected it.
  bool only_memory() const;

  /// Makes progress until everything sent has left, `until` or `is_over`. True if everything left.
  bool flush(TimePoint until, const std::function<bool()>& is_over);
  /// Closes every endpoint in order, then the worker. Only when no peer will send any more.
  void close(TimePoint until) noexcept;
  /// Closes at once whatever state messages are in; takes at most `kDropLimit`. After it nothing of UCX touches the
  /// memory of any message.
  void drop() noexcept;

 private:
  struct Endpoint {
    Connections* owner = nullptr;
    int peer = 0;
    ucp_ep_h handle = nullptr;
    bool reports_failure = false;
  };

  static void on_failure(void* endpoint, ucp_ep_h handle, ucs_status_t status) noexcept;
  void sleep_for_events(TimePoint until) noexcept;
  bool finish(void* request, TimePoint until, const std::function<bool()>& is_over) noexcept;
  void close_endpoints(bool force, TimePoint until) noexcept;

  Context context_;
  Worker worker_;
  int rank_;
  bool shared_memory_;
  std::deque<Endpoint> endpoints_;
  std::optional<EndpointFailure> failure_;
};

}  // namespace tightwire::ucx
