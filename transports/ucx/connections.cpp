#include "connections.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "error_text.hpp"
#include "inventory.hpp"
#include "part.hpp"

namespace tightwire::ucx {
namespace {

constexpr std::chrono::milliseconds kDropLimit{500};
constexpr std::chrono::milliseconds kCloseLimit{2'000};
constexpr int kQuietCalls = 16;  ///< of progress without an event, until UCX counts as having nothing to do

bool never() noexcept { return false; }

}  // namespace

Connections::Connections(const Options& options, int rank, int size)
    : context_(options, size),
      worker_(context_),
      rank_(rank),
      shared_memory_(has_shared_memory(resources(context_.get()))),
      endpoints_(static_cast<std::size_t>(size)) {}

Peer Connections::self() const {
  Peer self;
  self.host = this_host();
  self.shared_memory = shared_memory_;
  self.worker_address = worker_.address();
  return self;
}

void Connections::connect(const std::vector<Peer>& peers, const std::vector<int>& ranks) {
  const Peer& self = peers[static_cast<std::size_t>(rank_)];
  for (const int peer : ranks) {
    if (peer == rank_) continue;
    const auto index = static_cast<std::size_t>(peer);
    Endpoint& endpoint = endpoints_[index];
    endpoint.owner = this;
    endpoint.peer = peer;
    // UCX 1.13 gives up shared memory for endpoints that must report a lost peer, so those to our own host do not;
    // Membership reports for them. Both sides decide alike: UCX wants the same mode on both ends.
    endpoint.reports_failure = !share_memory(self, peers[index]);
    ucp_ep_params_t params{};
    params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(peers[index].worker_address.data());
    params.err_mode = endpoint.reports_failure ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler = {.cb = &Connections::on_failure, .arg = &endpoint};
    const ucs_status_t status = ucp_ep_create(worker(), &params, &endpoint.handle);
    if (status == UCS_ERR_UNREACHABLE)
      throw Error(Errc::unsupported, "ucx: rank " + std::to_string(rank_) + " cannot reach rank " +
                                         std::to_string(peer) + " with its transports (" +
                                         transport_names(resources(context())) + ")");
    require_ok(status, "connecting to rank " + std::to_string(peer));
  }
}

void Connections::on_failure(void* argument, ucp_ep_h /*handle*/, ucs_status_t status) noexcept {
  const Endpoint& endpoint = *static_cast<const Endpoint*>(argument);
  if (!endpoint.owner->failure_) endpoint.owner->failure_ = EndpointFailure{endpoint.peer, status};
}

std::string Connections::describe() const {
  std::map<std::string, std::string> peers_by_lanes;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.handle == nullptr) continue;
    std::string& peers = peers_by_lanes[lanes(endpoint.handle)];
    peers += (peers.empty() ? "" : ", ") + std::to_string(endpoint.peer);
  }
  if (peers_by_lanes.empty()) return "alone";
  if (peers_by_lanes.size() == 1) return peers_by_lanes.begin()->first;
  std::string text;
  for (const auto& [lanes, peers] : peers_by_lanes) text += (text.empty() ? "" : "; ") + lanes + " to ranks " + peers;
  return text;
}

bool Connections::only_memory() const {
  return std::all_of(endpoints_.begin(), endpoints_.end(), [](const Endpoint& endpoint) {
    return endpoint.handle == nullptr || only_shared_memory(lanes(endpoint.handle));
  });
}

void Connections::sleep_for_events(TimePoint until) noexcept {
  // Not all that it waits for is an event: room in a peer's queue in shared memory is none.
  constexpr std::chrono::milliseconds kLongest{5};
  if (ucp_worker_arm(worker()) != UCS_OK) return;
  pollfd polled = {.fd = event_descriptor(), .events = POLLIN, .revents = 0};
  poll(&polled, 1, static_cast<int>(std::min(time_left(until), kLongest).count()));
}

bool Connections::finish(void* request, TimePoint until, const std::function<bool()>& is_over) noexcept {
  if (request == nullptr) return true;
  if (UCS_PTR_IS_ERR(request)) return false;
  ucs_status_t status = UCS_INPROGRESS;
  for (int quiet = 0; (status = ucp_request_check_status(request)) == UCS_INPROGRESS;) {
    quiet = ucp_worker_progress(worker()) == 0 ? quiet + 1 : 0;
    if (Clock::now() >= until || is_over()) break;
    if (quiet < kQuietCalls)
      sched_yield();
    else
      sleep_for_events(until);
  }
  ucp_request_free(request);
  return status == UCS_OK;
}

bool Connections::flush(TimePoint until, const std::function<bool()>& is_over) {
  const ucp_request_param_t params{};
  return finish(ucp_worker_flush_nbx(worker(), &params), until, is_over);
}

void Connections::close_endpoints(bool force, TimePoint until) noexcept {
  for (Endpoint& endpoint : endpoints_) {
    // Only endpoints that report failures may be closed by force; the others end with the worker.
    if (endpoint.handle == nullptr || (force && !endpoint.reports_failure)) continue;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = force ? unsigned{UCP_EP_CLOSE_FLAG_FORCE} : 0U;
    finish(ucp_ep_close_nbx(std::exchange(endpoint.handle, nullptr), &params), until, &never);
  }
}

void Connections::close(TimePoint until) noexcept {
  close_endpoints(false, std::min(until, Clock::now() + kCloseLimit));
  worker_.close();
  context_.close();
}

void Connections::drop() noexcept {
  if (worker() == nullptr) return;
  const TimePoint until = Clock::now() + kDropLimit;
  close_endpoints(true, until);
  // UCX finishes such a close, and with it the messages of the endpoint, while it makes progress.
  for (int quiet = 0; quiet < kQuietCalls && Clock::now() < until;)
    quiet = ucp_worker_progress(worker()) == 0 ? quiet + 1 : 0;
  worker_.close();
  context_.close();
}

}  // namespace tightwire::ucx
