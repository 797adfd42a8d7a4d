#include "communicator.hpp"

#include <utility>

namespace tightwire::nccl {

/// While it lives, NCCL is called on the communicator: who gives up leaves it to that call to abort it.
class Communicator::Use {
 public:
  explicit Use(Communicator& owner) : owner_(owner) {
    const std::lock_guard lock(owner.mutex_);
    owner.require_open();
    owner.used_ = true;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.used_ = false;
  }

 private:
  Communicator& owner_;
};

Communicator::Communicator(const Api& api, ncclComm_t comm, Settings settings)
    : api_(api), settings_(std::move(settings)), comm_(comm) {}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  release();
  // The end of this rank is no loss to those that still work, once all of them have come here.
  if (settings_.leaves && !failure_) settings_.membership->leave(settings_.timeout);
}

/// Finalized, so that what is on its way arrives; aborted where that does not end.
void Communicator::release() noexcept {
  if (!settings_.owned || comm_ == nullptr) return;
  try {
    settle(api_, api_.comm_finalize(comm_), {"ncclCommFinalize", rank(), comm_, deadline_after(settings_.timeout)},
           [&] { require_all_present(); });
    api_.comm_destroy(comm_);
  } catch (const std::exception&) {
    api_.comm_abort(comm_);
  }
}

std::string Communicator::describe() const {
  int version = 0;
  api_.get_version(&version);
  return "nccl " + text_of_version(version) + (settings_.owned ? "" : ", a communicator of the caller's");
}

Error Communicator::as_error(const std::exception& error) const {
  const auto* const known = dynamic_cast<const Error*>(&error);
  return known != nullptr ? *known : Error(Errc::internal, where() + error.what());
}
void Communicator::require_open() const {
  if (failure_) throw Error(*failure_);
}
void Communicator::require_all_present() const {
  if (!settings_.membership) return;
  if (const auto loss = settings_.membership->loss())
    throw Error(Errc::peer_lost, where() + "rank " + std::to_string(loss->rank) + " lost: " + loss->reason);
}
/// What a call that waits asks in between.
std::function<void()> Communicator::looks() const {
  return [this] {
    const std::lock_guard lock(mutex_);
    require_open();
    require_all_present();
  };
}

/// The first error stays.
Error Communicator::close(const Error& error) noexcept {
  ncclComm_t given_up = nullptr;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = !failure_;
    if (first) failure_ = error;
    if (settings_.owned && !used_) given_up = std::exchange(comm_, nullptr);
  }
  changed_.notify_all();
  if (given_up != nullptr) api_.comm_abort(given_up);
  if (first && settings_.membership) settings_.membership->give_up(error.what());
  return *failure_;  // set once
}

/// -> the child, in a place that NCCL writes to when it is over with the parent.
void Communicator::split(ncclComm_t& child, bool& settled, TimePoint until) {
  const Use use(*this);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  // The child is there once the parent has settled (NCCL 2.23), and then it settles by itself.
  settle(api_, api_.comm_split(comm_, 0, rank(), &child, &config), {"ncclCommSplit", rank(), comm_, until}, looks());
  settled = true;
  settle(api_, ncclInProgress, {"ncclCommSplit", rank(), child, until}, looks());
}

std::shared_ptr<cuda::Transport> Communicator::open_channel(std::chrono::milliseconds timeout) {
  const std::lock_guard turn(calls_);
  const cuda::detail::OfDevice current(device(), rank());
  auto child = std::make_unique<ncclComm_t>(nullptr);
  bool settled = false;
  try {
    split(*child, settled, deadline_after(timeout));
  } catch (const std::exception& error) {
    const Error first = close(as_error(error));
    if (*child != nullptr && (settled || settings_.owned)) api_.comm_abort(*child);
    if (!settled) static_cast<void>(child.release());  // stays, as NCCL may yet write there
    throw first;
  }
  Settings settings = settings_;
  settings.timeout = timeout;
  settings.owned = true;
  settings.leaves = false;
  return std::make_shared<Communicator>(api_, *child, std::move(settings));
}

/// All that the first round needs, before it is under way.
void Communicator::begin() {
  if (watcher_.joinable()) return;
  rounds_.reserve(kRounds);
  while (rounds_.size() < kRounds) rounds_.emplace_back(rank());
  watcher_ = std::thread([this] { watch(); });
}

/// Waits, where the host is too far ahead, for the oldest round to end.
Communicator::Round& Communicator::free_round(cuda::Stream stream) {
  std::unique_lock lock(mutex_);
  require_open();
  std::uint64_t seen = ended_;
  TimePoint until = deadline_after(settings_.timeout);
  while (posted_ - ended_ == kRounds) {
    lock.unlock();
    if (const cudaError_t status = cudaStreamQuery(stream); status != cudaErrorNotReady)
      cuda::detail::require(status, "cudaStreamQuery", rank());
    std::this_thread::sleep_for(kPauseOfWaiting);
    lock.lock();
    require_open();
    if (std::exchange(seen, ended_) != ended_)
      until = deadline_after(settings_.timeout);
    else if (Clock::now() >= until)
      throw Error(Errc::timeout, where() + "of " + std::to_string(kRounds) + " rounds over NCCL none was done within " +
                                     std::to_string(settings_.timeout.count()) + " ms");
  }
  return rounds_[posted_ % kRounds];
}

void Communicator::put(std::span<const Message> round, cuda::Stream stream) {
  const Use use(*this);
  ncclResult_t result = api_.group_start();
  const char* call = "ncclGroupStart";
  for (const Message& message : round) {
    if (result != ncclSuccess && result != ncclInProgress) break;
    const bool sends = message.kind == Message::Kind::send;
    call = sends ? "ncclSend" : "ncclRecv";
    result = sends ? api_.send(message.data, message.bytes, ncclUint8, message.peer, comm_, stream)
                   : api_.recv(message.data, message.bytes, ncclUint8, message.peer, comm_, stream);
  }
  const ncclResult_t ended = api_.group_end();  // in any case: it is the thread's
  if (result != ncclSuccess && result != ncclInProgress) throw error_of(api_, result, call, rank(), comm_);
  settle(api_, ended, {"ncclGroupEnd", rank(), comm_, deadline_after(settings_.timeout)}, looks());
}

void Communicator::post(std::span<const Message> round, cuda::Stream stream) {
  const std::lock_guard turn(calls_);
  {
    const std::lock_guard lock(mutex_);
    require_open();
  }
  cuda::detail::require_not_captured(stream, rank(), "a round", "rounds are watched over");
  try {
    const cuda::detail::OfDevice current(device(), rank());
    begin();
    Round& mine = free_round(stream);
    mine.began = false;
    mine.ready.record(stream, rank());
    put(round, stream);
    mine.done.record(stream, rank());
    const std::lock_guard lock(mutex_);
    require_open();
    ++posted_;
  } catch (const std::exception& error) {
    throw close(as_error(error));
  }
  changed_.notify_all();
}

void Communicator::watch() {
  // Or calls would take memory of device 0, and questions would spoil a graph that another thread captures.
  cudaSetDevice(device());
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const std::uint64_t under_way = posted_ - ended_;
    if (under_way == 0 || failure_)
      changed_.wait(lock);
    else
      changed_.wait_for(lock, under_way == kRounds ? kPauseOfWaiting : kPause);
    if (stopping_ || failure_) continue;
    lock.unlock();
    try {
      look();
    } catch (const std::exception& error) {
      close(as_error(error));
    }
    lock.lock();
  }
}

/// At what is under way. Throws what is wrong with it. What CUDA is not needed for comes first, as its calls may wait.
void Communicator::look() {
  std::uint64_t posted = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    require_all_present();
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t asked = api_.comm_get_async_error(comm_, &state); asked != ncclSuccess)
      throw error_of(api_, asked, "ncclCommGetAsyncError", rank(), comm_);
    if (state != ncclSuccess && state != ncclInProgress)
      throw error_of(api_, state, "an operation that was under way", rank(), comm_);
    posted = posted_;
  }
  while (ended_ != posted && rounds_[ended_ % kRounds].done.reached(rank())) {
    const std::lock_guard lock(mutex_);
    ++ended_;
  }
  if (ended_ == posted) return;
  Round& round = rounds_[ended_ % kRounds];
  if (!round.began) {  // its time begins when the stream has come to it
    round.began = round.ready.reached(rank());
    round.since = Clock::now();
  } else if (Clock::now() - round.since > settings_.timeout) {
    throw Error(Errc::timeout, where() + "a round over NCCL was not done after " +
                                   std::to_string(settings_.timeout.count()) +
                                   " ms; a rank does not take part, or takes part otherwise");
  }
}

void Communicator::check() {
  try {
    const std::lock_guard lock(mutex_);
    require_open();
    require_all_present();
  } catch (const Error& error) {
    throw close(error);
  }
}

void Communicator::abort(std::string_view reason) noexcept {
  close(Error(Errc::peer_lost, where() + "(this rank) gave up: " + std::string(reason)));
}

}  // namespace tightwire::nccl
