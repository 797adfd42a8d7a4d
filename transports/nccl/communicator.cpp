#include "communicator.hpp"

#include <algorithm>
#include <utility>

namespace tightwire::nccl {

Communicator::Communicator(const Api& api, ncclComm_t comm, Settings settings)
    : api_(api), comm_(comm), settings_(std::move(settings)) {}

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
    settle(api_, api_.comm_finalize(comm_), {"ncclCommFinalize", rank(), comm_, Clock::now() + settings_.timeout},
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

void Communicator::require_open() const {
  if (failure_) throw Error(*failure_);
}
void Communicator::require_all_present() {
  if (!settings_.membership) return;
  if (const auto loss = settings_.membership->loss())
    throw Error(Errc::peer_lost, where() + "rank " + std::to_string(loss->rank) + " lost: " + loss->reason);
}

/// The first error stays.
Error Communicator::close(const Error& error) noexcept {
  if (failure_) return *failure_;
  failure_ = error;
  if (settings_.owned && comm_ != nullptr) api_.comm_abort(std::exchange(comm_, nullptr));
  if (settings_.membership) settings_.membership->give_up(error.what());
  return error;
}

std::shared_ptr<cuda::Transport> Communicator::open_channel(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  require_open();
  const cuda::detail::OfDevice current(device(), rank());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t child = nullptr;
  try {
    const TimePoint until = Clock::now() + timeout;
    // The child is there once the parent has settled (NCCL 2.23), and then it settles by itself.
    settle(api_, api_.comm_split(comm_, 0, rank(), &child, &config), {"ncclCommSplit", rank(), comm_, until},
           [&] { require_all_present(); });
    settle(api_, ncclInProgress, {"ncclCommSplit", rank(), child, until}, [&] { require_all_present(); });
  } catch (const Error& error) {
    if (child != nullptr) api_.comm_abort(child);
    throw close(error);
  }
  Settings settings = settings_;
  settings.timeout = timeout;
  settings.owned = true;
  settings.leaves = false;
  return std::make_shared<Communicator>(api_, child, std::move(settings));
}

void Communicator::put(std::span<const Message> round, cuda::Stream stream) {
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
  settle(api_, ended, {"ncclGroupEnd", rank(), comm_, Clock::now() + settings_.timeout},
         [&] { require_all_present(); });
}

void Communicator::post(std::span<const Message> round, cuda::Stream stream) {
  const std::lock_guard lock(mutex_);
  require_open();
  cuda::detail::require_not_captured(stream, rank(), "a round", "rounds are watched over");
  try {
    const cuda::detail::OfDevice current(device(), rank());
    while (rounds_.size() < kRounds) rounds_.emplace_back(rank());
    // Where the host is that far ahead, one more is put in between: only then is there no free one.
    if (pending_ == rounds_.size()) {
      std::rotate(rounds_.begin(), rounds_.begin() + static_cast<std::ptrdiff_t>(oldest_), rounds_.end());
      oldest_ = 0;
      rounds_.emplace_back(rank());
    }
    Round& mine = rounds_[(oldest_ + pending_) % rounds_.size()];
    mine.began = false;
    mine.ready.record(stream, rank());
    put(round, stream);
    mine.done.record(stream, rank());
    ++pending_;
    if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  } catch (const Error& error) {
    throw close(error);
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
    if (pending_ == 0 || failure_)
      changed_.wait(lock);
    else
      changed_.wait_for(lock, kPause);
    if (stopping_ || failure_) continue;
    try {
      look();
    } catch (const Error& error) {
      close(error);
    }
  }
}

/// At what is under way. Throws what is wrong with it.
void Communicator::look() {
  while (pending_ != 0 && rounds_[oldest_].done.reached(rank())) {
    oldest_ = (oldest_ + 1) % rounds_.size();
    --pending_;
  }
  require_all_present();
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t asked = api_.comm_get_async_error(comm_, &state); asked != ncclSuccess)
    throw error_of(api_, asked, "ncclCommGetAsyncError", rank(), comm_);
  if (state != ncclSuccess && state != ncclInProgress)
    throw error_of(api_, state, "an operation that was under way", rank(), comm_);
  if (pending_ == 0) return;
  Round& round = rounds_[oldest_];
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
  const std::lock_guard lock(mutex_);
  require_open();
  try {
    require_all_present();
  } catch (const Error& error) {
    throw close(error);
  }
}

void Communicator::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  close(Error(Errc::peer_lost, where() + "(this rank) gave up: " + std::string(reason)));
}

}  // namespace tightwire::nccl
