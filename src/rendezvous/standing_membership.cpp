#include "standing_membership.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "errno_text.hpp"
#include "wire.hpp"

namespace tightwire::rendezvous {
namespace {

/// How long the caller may be kept when the kernel does not take our last words at once.
constexpr std::chrono::milliseconds kLastWordsLimit{1000};

Descriptor make_event() {
  Descriptor event = Descriptor::make([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!event) {
    throw Error(Errc::transport, "cannot make an eventfd: " + errno_text(errno) + "; see ulimit -n");
  }
  return event;
}

void signal_event(const Descriptor& event) noexcept { ::eventfd_write(event.get(), 1); }

}  // namespace

StandingMembership::StandingMembership(const Rendezvous& rendezvous, Joined joined)
    : rank_(rendezvous.rank),
      size_(rendezvous.size),
      blobs_(std::move(joined.blobs)),
      wake_event_(make_event()),
      lost_event_(make_event()),
      peers_(std::move(joined.peers)) {
  for (Peer& peer : peers_) peer.channel.set_limit(kControlBytes);
  start();
}

void StandingMembership::start() {
  // The thread must not take signals away from the program's own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::make_unique<std::thread>([this] {
      try {
        watch();
      } catch (const std::exception&) {
        stop_watching();
      }
    });
  } catch (const std::system_error& error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(Errc::no_memory, std::string("cannot start the membership thread: ") + error.what());
  }
  ::pthread_setname_np(thread_->native_handle(), "tw-membership");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StandingMembership::~StandingMembership() {
  if (in_forked_child()) {
    // The thread exists in the parent only; to join or to destroy it would be wrong.
    static_cast<void>(thread_.release());
    return;
  }
  {
    std::unique_lock lock(mutex_);
    if (!leaving_ && !gave_up_ && !lost_) say_give_up("it closed its communicator without leaving");
    send_out(lock, kLastWordsLimit);
    stopping_ = true;
  }
  signal_event(wake_event_);
  thread_->join();
}

std::optional<Membership::Loss> StandingMembership::loss() const {
  if (!lost_.load(std::memory_order_acquire)) return std::nullopt;
  return loss_;
}

void StandingMembership::give_up(std::string_view reason) noexcept {
  if (in_forked_child()) return;
  try {
    std::unique_lock lock(mutex_);
    if (gave_up_ || leaving_) return;
    say_give_up(reason);
    send_out(lock, kLastWordsLimit);
  } catch (const std::exception&) {
    // Out of memory: the peers will see our connection end.
  }
}

void StandingMembership::say_give_up(std::string_view reason) {
  gave_up_ = true;
  const std::string text = printable_reason(reason);
  if (rank_ != 0) return tell_all(FrameType::give_up, text);
  std::string body;
  put_u32(body, 0);
  tell_all(FrameType::lost, body + text);
}

void StandingMembership::leave(std::chrono::milliseconds limit) noexcept {
  if (in_forked_child()) return;
  try {
    const TimePoint until = Clock::now() + std::clamp<std::chrono::milliseconds>(limit, std::chrono::milliseconds(0),
                                                                                 std::chrono::hours(24));
    std::unique_lock lock(mutex_);
    if (!leaving_ && !gave_up_) {
      leaving_ = true;
      tell_all(FrameType::leaving, {});
      if (rank_ == 0) check_all_left();
      send_out(lock, std::min(limit, kLastWordsLimit));
    }
    changed_.wait_until(lock, until, [&] { return all_left_ || barrier_broken_ || gave_up_ || lost_; });
  } catch (const std::exception&) {
    // Out of memory: the peers will see our connection end.
  }
}

void StandingMembership::watch() {
  {
    // What came in one piece with the end of joining is read already, and no poll() will tell of it.
    const std::lock_guard lock(mutex_);
    for (Peer& peer : peers_) serve(peer);
  }
  std::vector<pollfd> polled(1 + peers_.size());
  while (wait_for_events(polled)) {
    const std::lock_guard lock(mutex_);
    std::uint64_t ignored = 0;
    ::eventfd_read(wake_event_.get(), &ignored);
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (polled[i + 1].revents != 0) serve(peers_[i]);
    }
  }
}

/// Out of memory: nobody watches any more, so the job cannot go on.
void StandingMembership::stop_watching() {
  const std::lock_guard lock(mutex_);
  if (all_left_ || lost_) return;
  loss_ = Loss{rank_, "out of memory"};
  lost_.store(true, std::memory_order_release);
  signal_event(lost_event_);
  changed_.notify_all();
}

/// False when it is time to stop.
bool StandingMembership::wait_for_events(std::vector<pollfd>& polled) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    polled[0] = {wake_event_.get(), POLLIN, 0};
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Channel& channel = peers_[i].channel;
      const int events = channel.has_output() ? POLLIN | POLLOUT : POLLIN;
      polled[i + 1] = {channel.descriptor(), static_cast<short>(events), 0};
    }
  }
  while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
  }
  return true;
}

void StandingMembership::serve(Peer& peer) {
  if (peer.channel.descriptor() < 0) return;
  peer.channel.flush();
  peer.channel.receive();
  while (const auto frame = peer.channel.next()) on_frame(peer, *frame);
  if (peer.channel.ended()) on_end(peer);
}

void StandingMembership::on_frame(Peer& peer, const Frame& frame) {
  if (frame.type == FrameType::leaving) {
    peer.leaving = true;
    if (rank_ == 0) check_all_left();
  } else if (frame.type == FrameType::all_left && rank_ != 0) {
    all_left_ = true;
    changed_.notify_all();
  } else if ((frame.type == FrameType::give_up || frame.type == FrameType::failed) && rank_ == 0) {
    const bool joining = frame.type == FrameType::failed;
    on_loss(peer.rank,
            joining ? "it gave up joining: " + decode_failure(frame.body).text : printable_reason(frame.body), &peer);
  } else if (frame.type == FrameType::lost && rank_ != 0 && frame.body.size() >= 4) {
    const auto rank = static_cast<int>(std::min<std::uint32_t>(get_u32(frame.body), static_cast<unsigned>(size_)));
    on_loss(rank, printable_reason(std::string_view(frame.body).substr(4)), &peer);
  } else {
    on_loss(peer.rank,
            "it sent a control frame of type " + std::to_string(static_cast<int>(frame.type)) + " out of turn", &peer);
  }
}

void StandingMembership::on_end(Peer& peer) {
  const std::string reason = peer.channel.end_reason();
  peer.channel.close();
  if (all_left_) return;
  if (!peer.leaving) return on_loss(peer.rank, reason, &peer);
  if (rank_ == 0) return;
  barrier_broken_ = true;
  changed_.notify_all();
}

/// The first loss counts. The others hear of it before our own program does, which may then end at once.
void StandingMembership::on_loss(int rank, const std::string& reason, const Peer* source) {
  if (all_left_ || lost_) return;
  if (rank_ == 0) {
    std::string body;
    put_u32(body, static_cast<std::uint32_t>(rank));
    tell_all(FrameType::lost, body + reason, source);
  }
  loss_ = Loss{rank, reason};
  lost_.store(true, std::memory_order_release);
  signal_event(lost_event_);
  changed_.notify_all();
}

void StandingMembership::check_all_left() {
  if (all_left_ || !leaving_) return;
  if (!std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.leaving; })) return;
  all_left_ = true;
  tell_all(FrameType::all_left, {});
  changed_.notify_all();
}

void StandingMembership::tell_all(FrameType type, std::string_view body, const Peer* except) {
  const SharedBytes frame = encode_frame(type, body);
  for (Peer& peer : peers_) {
    if (&peer != except && !peer.channel.ended()) peer.channel.send(frame);
  }
  if (has_output()) signal_event(wake_event_);
}

bool StandingMembership::has_output() const noexcept {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.channel.has_output(); });
}

/// Waits until the kernel has taken everything, so that it arrives even if the process ends next.
void StandingMembership::send_out(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit) {
  const TimePoint until = deadline_after(limit);
  std::vector<pollfd> polled;
  while (true) {
    polled.clear();
    for (Peer& peer : peers_) {
      peer.channel.flush();
      if (peer.channel.has_output()) polled.push_back({peer.channel.descriptor(), POLLOUT, 0});
    }
    if (polled.empty() || Clock::now() >= until) return;
    lock.unlock();
    poll_until(polled.data(), polled.size(), until);
    lock.lock();
  }
}

}  // namespace tightwire::rendezvous
