// Opening what the peers share, and hearing from all of them whether they could.
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "shm_transport.hpp"

namespace tightwire::shm {
namespace {

std::optional<Error> error_in(const SegmentHead& head) {
  const std::uint32_t code = head.outcome.load(std::memory_order_acquire) - 1;
  if (code == 0) return std::nullopt;
  const auto end = std::find(head.outcome_text.begin(), head.outcome_text.end(), char{});
  return Error(code <= static_cast<std::uint32_t>(Errc::internal) ? static_cast<Errc>(code) : Errc::corrupt,
               std::string(head.outcome_text.begin(), end));
}

void tell_outcome(SegmentHead& head, const std::optional<Error>& failure) {
  if (failure) std::strncpy(head.outcome_text.data(), failure->what(), head.outcome_text.size() - 1);
  const Errc code = failure ? failure->code() : Errc::ok;
  head.outcome.store(static_cast<std::uint32_t>(code) + 1, std::memory_order_release);
}

}  // namespace

std::optional<Error> ShmTransport::try_lanes(const std::vector<Peer>& peers) {
  std::optional<Error> failure;
  try {
    own_->reserve();
  } catch (const Error& error) {
    failure.emplace(error.code(), "rank " + std::to_string(rank_) + ": " + error.what());
  }
  for (const int peer : ranks_) {
    if (peer == rank_) continue;
    const auto note = [&](Errc code, const std::string& what) {
      if (failure) return;
      failure.emplace(code, "rank " + std::to_string(rank_) + " cannot open the memory of rank " +
                                std::to_string(peer) + ": " + what);
    };
    try {
      add_lane(peer, peers[static_cast<std::size_t>(peer)]);
    } catch (const Error& error) {
      note(error.code(), error.what());
    } catch (const std::exception& error) {
      note(Errc::no_memory, error.what());
    }
  }
  return failure;
}

std::optional<Error> ShmTransport::outcome_of(int peer, TimePoint until) {
  const auto& head = *reinterpret_cast<const SegmentHead*>(neighbours_[static_cast<std::size_t>(peer)].control.data());
  while (head.outcome.load(std::memory_order_relaxed) == 0) {
    require_healthy();
    if (Clock::now() >= until)
      fail(Errc::timeout,
           "rank " + std::to_string(rank_) + " shared memory, and rank " + std::to_string(peer) +
               " did not say in time whether it could open it",
           false);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return error_in(head);
}

/// Who could not open another's memory knows by itself that all fail, and so does everybody who hears of one: so all
/// come to the same end, though no rank may reach all others. Of several failures they name the first that they see.
std::optional<Error> ShmTransport::connect(const std::vector<Peer>& peers, TimePoint until) {
  std::optional<Error> failure = try_lanes(peers);
  tell_outcome(*own_->head, failure);
  for (const int peer : ranks_) {
    if (peer == rank_ && failure) break;
    if (neighbours_[static_cast<std::size_t>(peer)].control.data() == nullptr) continue;
    if (std::optional<Error> theirs = outcome_of(peer, until)) {
      failure = std::move(theirs);
      break;
    }
  }
  failure_ = failure;
  return failure;
}

void ShmTransport::leave(TimePoint until) { leave_in_order(*membership_, until); }

}  // namespace tightwire::shm
