// How a transport over MPI ends: in order, or because a rank gives up.
#include <algorithm>
#include <cstring>
#include <utility>

#include "mpi_transport.hpp"

namespace tightwire::mpi {

void MpiTransport::tell_all(Control::Kind kind) {
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    Operation& word =
        operations_.add(nullptr, {.kind = Message::Kind::send, .peer = other, .tag = 0, .data = nullptr, .bytes = 0});
    const bool hello = kind == Control::Kind::hello;
    word.control = {.kind = kind, .tag = hello ? kProtocol : 0, .bytes = hello ? node_ : 0};
    operations_.send(word, reinterpret_cast<const std::byte*>(&word.control), sizeof(Control), kControlTag);
  }
}

void MpiTransport::tell_reason(std::string_view reason) noexcept {
  ControlWithReason& last_words = in_use_->last_words;
  const std::size_t bytes = std::min(reason.size(), last_words.reason.size());
  last_words.control = {.kind = Control::Kind::abort, .bytes = bytes};
  std::memcpy(last_words.reason.data(), reason.data(), bytes);
  try {
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      Operation& word =
          operations_.add(nullptr, {.kind = Message::Kind::send, .peer = other, .tag = 0, .data = nullptr, .bytes = 0});
      operations_.send(word, reinterpret_cast<const std::byte*>(&last_words), sizeof(Control) + bytes, kControlTag);
    }
  } catch (const std::exception&) {
    // MPI itself failed: the others notice by their deadlines.
  }
}

void MpiTransport::tell_late() noexcept {
  if (!untold_ || std::this_thread::get_id() != owner_) return;
  tell_reason(*untold_);
  untold_.reset();
  for (Peer& each : peers_) each.waiting.clear();
  operations_.give_up();
}

void MpiTransport::fail(Errc code, const std::string& message) {
  shut(code, message, true);
  throw Error(*failure_);
}

void MpiTransport::shut(Errc code, const std::string& message, bool tell) {
  if (failure_) return;
  failure_.emplace(code, message);
  if (tell) tell_reason(message);
  for (Peer& each : peers_) each.waiting.clear();
  operations_.give_up();
  events_.fetch_add(1, std::memory_order_relaxed);
}

void MpiTransport::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  tell_late();
  if (failure_) return;
  try {
    const std::string text = "rank " + std::to_string(rank_) + " (this rank) gave up: " + std::string(reason);
    if (!any_thread_ && std::this_thread::get_id() != owner_) {
      // Only the other thread may call MPI; it tells the peers, and takes receives back, with its next call.
      untold_ = std::string(reason);
      failure_.emplace(Errc::peer_lost, text);
      return;
    }
    failure_.emplace(Errc::peer_lost, text);
    tell_reason(reason);
    for (Peer& each : peers_) each.waiting.clear();
    operations_.give_up();
  } catch (const std::exception&) {
    // No memory for the text.
  }
  events_.fetch_add(1, std::memory_order_relaxed);
}

void MpiTransport::close_in_order() {
  std::unique_lock lock(mutex_);
  tell_late();
  if (failure_) return;
  progress();
  if (loss_) return;
  if (operations_.incomplete_count() != 0) {
    lock.unlock();
    abort("it closed its transport with messages unfinished");
    return;
  }
  tell_all(Control::Kind::goodbye);
  const TimePoint until = deadline_after(limit_);
  const auto all_gone = [&] {
    for (int other = 0; other < size_; ++other)
      if (other != rank_ && !peer(other).gone) return false;
    return true;
  };
  while (!(all_gone() && !operations_.has_requests()) && !loss_ && Clock::now() < until) {
    lock.unlock();
    idle(until);
    lock.lock();
  }
}

void MpiTransport::give_back() noexcept {
  const std::lock_guard lock(mutex_);
  operations_.give_up();
  if (listening_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&listening_);
    MPI_Request_free(&listening_);
  }
  // Collective, so only where every rank is known to come; otherwise it is left to MPI's own end.
  const bool in_order =
      !failure_ && !loss_ && !operations_.has_requests() &&
      std::all_of(peers_.begin(), peers_.end(), [&](const Peer& each) { return each.gone || &each == &peer(rank_); });
  if (in_order) MPI_Comm_free(&communicator_);
}

}  // namespace tightwire::mpi
