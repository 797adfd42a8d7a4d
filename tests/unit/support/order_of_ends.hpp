#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/observer.hpp>

#include "model.hpp"
#include "wrapping_transport.hpp"

namespace tightwire::testing {

/// Says of no message that it is done, until it is opened; then a moment later than it is, as on a link with latency.
class GatedTransport final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;
  bool done(Ticket ticket) override {
    if (ticket == 0) return true;
    if (!open_) return false;
    const std::lock_guard lock(mutex_);
    const auto due = due_.try_emplace(ticket, TimePoint::max()).first;
    if (due->second == TimePoint::max() && WrappingTransport::done(ticket)) due->second = Clock::now() + kLatency;
    if (Clock::now() < due->second) return false;
    due_.erase(due);
    return true;
  }
  void idle(TimePoint until) override { WrappingTransport::idle(std::min(until, Clock::now() + kLatency)); }
  void open(bool open) {
    open_ = open;
    wake();
  }

 private:
  static constexpr std::chrono::microseconds kLatency{200};
  std::atomic<bool> open_{true};
  std::mutex mutex_;
  std::map<Ticket, TimePoint> due_;
};

/// Starts the buckets of a model, in an order of this rank's own, while their messages are under way on all ranks and
/// none arrives. Returns the first parameters of buckets in the order in which these then end.
inline std::vector<ParameterId> order_of_ends(const std::shared_ptr<Transport>& transport, const Model& model,
                                              SessionOptions options, const std::vector<BucketId>& starts) {
  class Ends final : public Observer {
   public:
    void finished(const Session& /*session*/, const Bucket& bucket) override {
      ends.emplace_back(bucket.operation.ended, bucket.parameters.front());
    }
    std::vector<std::pair<TimePoint, ParameterId>> ends;
  };
  const auto ends = std::make_shared<Ends>();
  const auto gated = std::make_shared<GatedTransport>(transport);
  options.observer = ends;
  const auto session = sealed_session(gated, model, options);
  Gradients gradients(model);
  gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
  gated->open(false);
  std::vector<Handle> handles;
  for (const BucketId id : starts) {
    std::vector<void*> pointers;
    for (const ParameterId p : session->bucket_parameters(id)) pointers.push_back(gradients.pointers()[p]);
    handles.push_back(session->start(id, pointers));
  }
  static_cast<void>(gather_values(*transport, 0));
  gated->open(true);
  for (Handle& handle : handles) handle.wait();
  static_cast<void>(session->commit());
  std::sort(ends->ends.begin(), ends->ends.end());
  std::vector<ParameterId> order;
  for (const auto& end : ends->ends) order.push_back(end.second);
  return order;
}

}  // namespace tightwire::testing
