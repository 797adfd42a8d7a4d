#include "mixed_transport.hpp"

#include <array>
#include <utility>

#include "waiting.hpp"

namespace tightwire::mixed {

MixedTransport::MixedTransport(int rank, Nodes nodes, std::unique_ptr<TransportPart> inside,
                               std::unique_ptr<TransportPart> across, std::chrono::milliseconds limit)
    : rank_(rank),
      nodes_(std::move(nodes)),
      node_(nodes_.place_of(rank).first + 1),
      limit_(limit),
      out_of_memory_(out_of_memory(rank)),
      across_(std::move(across)),
      inside_(std::move(inside)) {
  is_near_.resize(static_cast<std::size_t>(across_->size()));
  for (const int near : nodes_.ranks[nodes_.place_of(rank).first]) is_near_[static_cast<std::size_t>(near)] = true;
}

MixedTransport::~MixedTransport() {
  const TimePoint until = deadline_after(limit_);
  inside_->close_by(until);
  across_->close_by(until);
}

std::string MixedTransport::describe() const {
  return "mixed, " + std::to_string(nodes_.nodes()) + (nodes_.nodes() == 1 ? " node of " : " nodes of ") +
         nodes_.sizes() + ": inside " + inside_->describe() + "; across " + across_->describe();
}

void MixedTransport::require_open() const {
  origin_.require_parent(rank_);
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

template <class Call>
auto MixedTransport::attempt(const Call& call) {
  require_open();
  try {
    return call();
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception&) {  // of our own lists of messages: the parts throw nothing but Errors
    fail(out_of_memory_);
  }
}

void MixedTransport::fail(const Error& error) {
  {
    // Kept first, or another thread would throw what `abort` makes of it.
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  inside_->abort(failure_->what());
  across_->abort(failure_->what());
  throw Error(*failure_);
}

void MixedTransport::attach(std::span<std::byte> memory) {
  attempt([&] {
    inside_->attach(memory);
    across_->attach(memory);
  });
}

/// Inside first: it may put other pages there, and UCX may register those that it finds.
void MixedTransport::attach_pages(std::span<std::byte> pages) {
  attempt([&] {
    inside_->attach_pages(pages);
    across_->attach(pages);
  });
}

void MixedTransport::detach(std::span<std::byte> memory) noexcept {
  if (origin_.in_forked_child()) return;
  if (inside_->uses(memory) || across_->uses(memory)) abort("it took away memory that unfinished messages use");
  across_->detach(memory);
  inside_->detach(memory);
}

Ticket MixedTransport::post(std::span<const Message> messages) {
  require_valid(messages, rank_, size());
  return attempt([&]() -> Ticket {
    if (messages.empty()) return 0;
    const std::lock_guard lock(mutex_);
    near_.clear();
    far_.clear();
    for (const Message& message : messages) (is_near(message.peer) ? near_ : far_).push_back(message);
    Round& round = rounds_.open();
    round.is_spent = round.is_inside_done = round.is_across_done = false;
    round.inside = inside_->post(near_);
    round.across = across_->post(far_);
    return RoundPool<Round>::ticket(round);
  });
}

bool MixedTransport::done(Ticket ticket) {
  if (ticket == 0) {
    require_open();
    return true;
  }
  const std::optional<bool> is_done = attempt([&]() -> std::optional<bool> {
    const std::lock_guard lock(mutex_);
    Round* const round = rounds_.find(ticket);
    if (round == nullptr || round->is_spent) return std::nullopt;
    if (!round->is_inside_done) round->is_inside_done = inside_->settle(round->inside);
    if (!round->is_across_done) round->is_across_done = across_->settle(round->across);
    if (!round->is_inside_done || !round->is_across_done) {
      inside_->check_peers();
      across_->check_peers();
      return false;
    }
    round->is_spent = true;
    if (!inside_->lends(round->inside)) rounds_.close(*round);
    return true;
  });
  if (!is_done)
    throw Error(Errc::invalid_argument, "rank " + std::to_string(rank_) + ": this ticket was spent or never given out");
  return *is_done;
}

void MixedTransport::release(Ticket ticket) {
  attempt([&] {
    const std::lock_guard lock(mutex_);
    Round* const round = rounds_.find(ticket);
    if (round == nullptr || !round->is_spent) return;
    inside_->release(round->inside);
    rounds_.close(*round);
  });
}

/// One wait for both: a thread that slept in one of them would sleep through the messages of the other.
void MixedTransport::idle(TimePoint until) {
  attempt([&] {
    const std::array<TransportPart*, 2> parts = {inside_.get(), across_.get()};
    wait_for_news(parts, 0, until);
  });
}

std::string MixedTransport::waiting_for(Ticket ticket) const {
  origin_.require_parent(rank_);
  const std::lock_guard lock(mutex_);
  const Round* const round = rounds_.find(ticket);
  if (round == nullptr) return {};
  std::vector<int> silent = inside_->silent(round->inside);
  for (const int rank : across_->silent(round->across)) silent.push_back(rank);
  return rank_list(std::move(silent));
}

void MixedTransport::abort(std::string_view reason) noexcept {
  if (origin_.in_forked_child()) return;
  try {
    const std::lock_guard lock(mutex_);
    if (!failure_)
      failure_.emplace(Errc::peer_lost,
                       "rank " + std::to_string(rank_) + " (this rank) gave up: " + std::string(reason));
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    failure_ = out_of_memory_;  // for the text: the peers hear of it all the same
  }
  inside_->abort(reason);
  across_->abort(reason);
}

}  // namespace tightwire::mixed
