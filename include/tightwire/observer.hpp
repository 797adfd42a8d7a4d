#pragma once
#include <memory>
#include <string>

namespace tightwire {

class Session;
class Transport;
struct Bucket;

/// Told by a Session what it does; see Telemetry. Without one (SessionOptions::observer) a Session pays a comparison
/// per call. Calls come from the threads that call the Session: `started` may come at the same time as `finished`.
///
/// What an observer throws goes to that caller: of `agreement` and `sealed` it closes the Session; of `started` in
/// `Session::start` nothing has begun. Elsewhere all that was asked for is done first, so that no other rank waits:
/// after `all_reduce` and `Handle::wait` the buffers hold the result, and of `step_ended` the step has ended.
class Observer {
 public:
  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer() = default;

  /// What must be alike on all ranks for this one to work, in lines; "" where that is nothing. `seal` compares it, and
  /// throws Error(mismatch) on every rank where one has something else, or no observer.
  virtual std::string agreement() const { return {}; }
  /// At the end of `seal`, of every rank.
  virtual void sealed(const Session& /*session*/, const std::shared_ptr<Transport>& /*transport*/) {}
  /// The buffers at `bucket.pointers` hold what is to be reduced; its reduction begins after this.
  virtual void started(const Session& /*session*/, const Bucket& /*bucket*/) {}
  /// They hold the result: of `bucket.last`, from `bucket.operation.began` to `ended`.
  virtual void finished(const Session& /*session*/, const Bucket& /*bucket*/) {}
  /// At the end of `commit` and `rollback`, of every rank. `session.last_step()` is the step that ended.
  virtual void step_ended(const Session& /*session*/, bool /*kept*/) {}
};

/// "" without an observer.
inline std::string agreement_of(const std::shared_ptr<Observer>& observer) {
  return observer ? observer->agreement() : std::string();
}

}  // namespace tightwire
